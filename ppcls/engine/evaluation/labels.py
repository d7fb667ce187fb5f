"""Labels evaluation images by the class names of a model, not by the positions of their folders."""

from __future__ import annotations

from pathlib import Path

from ppcls.data.index.class_names import check_known_folders, join_first, read_class_names
from ppcls.data.section import DataLoader
from ppcls.engine.evaluation.stored_names import find_label_list
from ppcls.files import print_error


def label_by_names(data: DataLoader, class_num: int, weights: Path) -> tuple[DataLoader, list[str]]:
    """Labels the class folders of ``DataLoader.Eval`` by the names that are stored with trained weights.

    Args:
        data: Data sets of the evaluation.
        class_num: Number of classes of the model.
        weights: Checkpoint folder, or file of weights.

    Returns:
        The data sets with ``class_names`` of the evaluation data; and notes about classes without a folder,
        and about labels that follow the positions of the folders because the names are unknown.

    Raises:
        UserError: A folder has none of the names, or the file of the names is invalid.
    """
    split = data.evaluated.get("Eval")
    if split is None or split.dataset.class_root is None:
        return data, []  # labels of lists and containers are numbers; retrieval compares its own labels
    folders = split.dataset.model_copy(update={"class_names": None}).folder_classes
    if not folders:
        return data, []  # reported when the images are listed
    root = split.dataset.place
    listing = find_label_list(weights)
    if listing is None:
        if split.dataset.folder_classes != folders:  # by the names of the training folder
            return data, []
        note = f"{weights} has no class names (label_list.txt), so labels follow the sorted folders"
        return data, [f"{root}: {note}"]
    names = read_class_names(listing, class_num)
    if len(names) == len(folders) and not set(names) & set(folders):
        # The names may be of another kind, such as 'tench' for the folder n01440764.
        pairs = join_first([f"{folder} is {name!r}" for name, folder in zip(names, folders, strict=True)])
        note = f"no folder has the name of a class in {listing}, so labels follow the sorted folders"
        return _with_names(data, folders), [f"{root}: {note}: {pairs}"]
    check_known_folders(Path(root), folders, names)
    known = set(folders)
    missing = [name for name in names if name not in known]
    notes = [f"{root}: no folder for the classes {join_first(missing)}"] if missing else []
    return _with_names(data, names), notes


def warn_of_labels(notes: list[str]) -> None:
    """Prints notes of `label_by_names` to standard error."""
    for note in notes:
        print_error(f"warning: {note}")


def _with_names(data: DataLoader, names: tuple[str, ...]) -> DataLoader:
    split = data.evaluated["Eval"]
    dataset = split.dataset.model_copy(update={"class_names": names})
    named = split.model_copy(update={"dataset": dataset})
    return data.model_copy(update={"Eval": named})

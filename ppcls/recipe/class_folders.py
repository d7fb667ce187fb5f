"""Sets config values that depend on an image folder with one subfolder per class, before validation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.config.base.problems import show
from ppcls.config.base.tree import mapping_at, model_sections, node_at
from ppcls.data.images.paths import explain_file
from ppcls.data.index.class_folders import (
    LABEL_LIST,
    PARTS,
    check_are_classes,
    find_class_root,
    list_class_folders,
    list_empty_folders,
    read_metadata,
)
from ppcls.data.stored.roots import data_root, naming
from ppcls.errors import UserError
from ppcls.files import IMAGE_EXTENSIONS, read_regular, real_path
from ppcls.files.urls import is_url, local_path
from ppcls.recipe.folder_hints import describe_missing_folder, explain_too_few_classes

if TYPE_CHECKING:  # the schema uses this module
    from ppcls.data.section import Split
    from ppcls.engine.core.settings import CheckpointSettings

# Keys that DataLoader.Eval copies from DataLoader.Train if both are parts of one folder.
_SHARED = ("image_root", "val_share", "split_seed", "extensions", "follow_links")
FOLDER_DATASET = "ImageFolderDataset"
_ASSUMED_CLASSES = 1000  # number of classes for the validation of other keys if they can't be counted


def fill_from_class_folders(tree: dict[str, Any]) -> None:
    """Sets config values that depend on an image folder, in place, before validation.

    If ``DataLoader.Eval`` is a part of an image folder, it gets the missing keys from ``DataLoader.Train``.
    If two data sets have different class folders, both get the same ``class_names``, so that a name has the
    same label in both.
    ``class_num: auto`` of models and heads becomes the number of class folders. If the image folder is
    missing, for example for prediction on another machine, ``class_num`` becomes the number of names in
    ``label_list.txt`` of the run.

    Args:
        tree: The YAML, which may be invalid.

    Raises:
        UserError: The classes can't be counted, or there are fewer than two classes.
        StorageError: The image folder is in object storage, which can't be read.
    """
    train, evaluation = (mapping_at(tree, f"DataLoader.{split}.dataset") for split in ("Train", "Eval"))
    if train.get("name") == evaluation.get("name") == FOLDER_DATASET and evaluation.get("part") is not None:
        for key in _SHARED:
            if key in train:
                evaluation.setdefault(key, train[key])
    models = [model for model in model_sections(tree) if model.get("class_num") == "auto"]
    classes = _ASSUMED_CLASSES
    try:
        root = train.get("image_root")
        if models and train.get("name") == FOLDER_DATASET and isinstance(root, str) and is_url(root):
            data_root(root)  # the next two functions ignore errors, and each would wait for the storage again
        if train.get("on_error") == "skip" and train.get("class_names") is None:
            _leave_out_empty_classes(tree, train)
        _share_class_names(tree)
        if models:
            classes = _count_classes(tree, train)
    finally:
        for model in models:
            model["class_num"] = classes


def _leave_out_empty_classes(tree: dict[str, Any], train: dict[Any, Any]) -> None:
    """Sets ``class_names`` of the training images to the class folders with images, if others are empty.

    The data set then ignores the empty folders, and reports them. A number of classes in the config is a
    choice of the user, with which the empty folders are an error.

    Raises:
        UserError: Only one class has images.
    """
    root = train.get("image_root")
    counted = any(model.get("class_num") == "auto" for model in model_sections(tree))
    if train.get("name") != FOLDER_DATASET or train.get("part") != "train" or not counted:
        return
    names = _folder_names(train)
    if not names or not isinstance(root, str):
        return
    extensions = train.get("extensions", IMAGE_EXTENSIONS)
    if not isinstance(extensions, (list, tuple)) or not all(isinstance(each, str) for each in extensions):
        return  # the validation reports it
    try:
        empty = list_empty_folders(find_class_root(data_root(root), "train")[0], extensions)
    except (OSError, ValueError, UserError):
        return  # reported when the images are listed
    remaining = [name for name in names if name not in empty]
    if len(remaining) == 1 and empty:
        raise UserError(
            f"{root}: only the class folder {remaining[0]!r} has images; expected images of at least two "
            "classes"
        )
    if empty and remaining:
        train["class_names"] = remaining


def _share_class_names(tree: dict[str, Any]) -> None:
    """Sets ``class_names`` of evaluation data whose folders differ from those of the data that define them.

    The training data define the classes of ``DataLoader.Eval``. For retrieval, the labels of query and
    gallery need only be the same, so all names of both get a label.
    """
    train = _folder_names(mapping_at(tree, "DataLoader.Train.dataset"))
    evaluation = mapping_at(tree, "DataLoader.Eval.dataset")
    folders = _folder_names(evaluation)
    if train and folders and folders != train and evaluation.get("class_names") is None:
        evaluation["class_names"] = list(train)  # configs that ppcls wrote contain null for defaults
    retrieval = [mapping_at(tree, f"DataLoader.Eval.{part}.dataset") for part in ("Query", "Gallery")]
    names = [_folder_names(dataset) for dataset in retrieval]
    if all(names) and names[0] != names[1]:
        for dataset in retrieval:
            if dataset.get("class_names") is None:
                dataset["class_names"] = sorted({*names[0], *names[1]})


def _folder_names(dataset: dict[Any, Any]) -> tuple[str, ...]:
    """Returns the class names of an image folder; an empty tuple for other data and missing folders."""
    root = dataset.get("image_root")
    part = dataset.get("part")
    names = dataset.get("class_names")
    if dataset.get("name") != FOLDER_DATASET or not isinstance(root, str):
        return ()
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return tuple(names)
    try:
        return list_class_folders(find_class_root(data_root(root), part if part in PARTS else None)[0])
    except (OSError, ValueError, UserError):
        return ()  # reported when the images are listed


def _count_classes(tree: dict[str, Any], train: dict[Any, Any]) -> int:
    root = train.get("image_root")
    part = train.get("part")
    if train.get("name") == FOLDER_DATASET and isinstance(train.get("class_names"), list):
        return len(train["class_names"])
    if train.get("name") != FOLDER_DATASET or root is None:
        raise UserError(
            "Arch.class_num: auto counts class folders, so it needs an ImageFolderDataset with an image_root "
            "in DataLoader.Train.dataset; set a number instead"
        )
    if not isinstance(root, str):
        raise UserError(
            f"DataLoader.Train.dataset.image_root: expected text, got {show(root)}; put the value in quotes, "
            "so that YAML reads it as text"
        )
    output = node_at(tree, "Global.output_dir")
    listing = Path(output) / LABEL_LIST if isinstance(output, str) else None
    try:
        folder = data_root(root)
        if folder.is_dir():
            with naming(root, folder):
                return _count_folders(find_class_root(folder, part if part in PARTS else None)[0])
        if listing is not None and listing.is_file():
            return sum(1 for line in read_regular(listing).decode().splitlines() if line.strip())
    except (OSError, ValueError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        raise UserError(f"Arch.class_num: auto: can't count the classes: {reason}") from None
    if Path(root).is_file():
        raise UserError(f"{root}: {explain_file(Path(root))}")
    raise UserError(describe_missing_folder(root, "DataLoader.Train.dataset.image_root", of_classes=True))


def checked_output_dir(settings: CheckpointSettings, splits: Mapping[str, Split]) -> Path:
    """Returns the output folder of a run, which must not be among the class folders of the run.

    Args:
        settings: The keys of ``Global`` with the output folder.
        splits: Data sets that the run reads, by their keys in ``DataLoader``.

    Raises:
        UserError: The output folder would become a class, or its pictures would become images.
    """
    output_dir = local_path(settings.output_dir)
    for name, split in splits.items():
        root = split.dataset.class_root
        if root is not None and real_path(output_dir).is_relative_to(real_path(root)):
            raise UserError(
                f"Global.output_dir: {output_dir} is inside the class folders {root} (DataLoader.{name}), "
                "where it would become a class; choose a folder outside with --output, such as ../output"
            )
    return output_dir


def _count_folders(folder: Path) -> int:
    names = list_class_folders(folder)
    if len(names) < 2:
        folders = f"only {names[0]!r}" if names else "none"
        raise UserError(
            f"{folder}: expected one subfolder of images per class, at least two classes, found {folders}"
            f"{explain_too_few_classes(folder)}"
        )
    if read_metadata(folder) is None:
        check_are_classes(folder, names)
    return len(names)

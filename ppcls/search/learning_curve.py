"""Implements ``ppcls train --learning-curve``: runs with an eighth, a quarter and a half of the images.

Decisions:

- The parts are nested, and each has the same share of every class, so that they differ in number only. All
  runs are evaluated on the same images.
- The run with all images is the ordinary run, which follows in the process of the command. Its report shows
  the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.base.tree import Tree
from ppcls.data.index.class_folders import LABEL_LIST
from ppcls.data.index.class_names import write_class_names
from ppcls.data.index.files import FileIndex
from ppcls.data.index.split import write_list
from ppcls.data.section import DataLoader
from ppcls.errors import UserError, child_error, counted
from ppcls.files import write_text
from ppcls.recipe.load import dump_config, validate
from ppcls.report.confusion import CONFUSION_FILE, read_confusion
from ppcls.report.summary.certainty import measure_certainty
from ppcls.report.summary.curve import CURVE_FILE, CurvePoint, write_curve
from ppcls.runtime.launch import check_single_process
from ppcls.search.trials import last_lines, start_training

FOLDER = "learning_curve"
_SHARES = (1 / 8, 1 / 4, 1 / 2)
_CHAIN_KEYS = ("transform_ops", "batch_transform_ops", "on_error", "max_errors", "bad_images", "follow_links")
_PARTS = ("Train", "Eval")


def measure_curve(
    tree: Tree, data: DataLoader, classes: int | None, output_dir: Path, report: Callable[[str], None]
) -> None:
    """Trains with parts of the images, and writes the results for the report of the run with all images.

    Args:
        tree: Config of the run as plain data.
        data: Data sets of the config.
        classes: Number of classes.
        output_dir: Existing output folder of the run with all images.
        report: Function that receives a line about each run.

    Raises:
        UserError: The data can't be divided, or a run fails.
    """
    check_single_process("--learning-curve")
    indexes = read_splits(data, classes)
    folder = output_dir / FOLDER
    folder.mkdir(exist_ok=True)
    train = indexes["Train"]
    points = []
    for chosen in choose_parts(train.labels, tree["Global"]["seed"]):
        count = int(chosen.sum())
        report(f"learning curve: training with {count} of {counted(len(train), 'image')}")
        run = folder / f"images_{count}"
        masks = {"Train": chosen, "Eval": np.ones(len(indexes["Eval"]), np.bool_)}
        file = write_part(tree, data, indexes, masks, run)
        log = folder / f"images_{count}.log"
        with start_training(file, [], log) as process:
            code = process.wait()
        if code or not (run / CONFUSION_FILE).is_file():
            raise child_error(code, f"--learning-curve: the run failed: {last_lines(log)}; see {log}")
        certainty = measure_certainty(*read_confusion(run / CONFUSION_FILE))
        assert certainty is not None  # the evaluation has images
        points.append(CurvePoint.of(count, certainty))
        report(f"learning curve: {counted(count, 'image')}: {certainty.describe()}")
    write_curve(output_dir / CURVE_FILE, points, len(train))


def choose_parts(labels: NDArray[np.int64], seed: int) -> Iterator[NDArray[np.bool_]]:
    """Yields the images of each part, [N] bool, in ascending order of their number.

    A part contains the previous ones, and at least one image of each class. Parts that are equal to the
    previous one are omitted.

    Args:
        labels: Labels of the images, [N].
        seed: Seed of the choice.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    rank = np.empty(len(labels), np.int64)  # of each image in its class
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = np.arange(len(members))
    sizes = np.bincount(labels)[labels]
    previous = 0
    for share in _SHARES:
        chosen = rank < np.maximum(1, np.round(share * sizes))
        if previous < chosen.sum() < len(labels):
            previous = int(chosen.sum())
            yield chosen


def read_splits(data: DataLoader, classes: int | None) -> dict[str, FileIndex]:
    """Returns the images for training and for evaluation, by the name of the split.

    Raises:
        UserError: A split is missing, or its images are not separate files with one label each.
    """
    splits = {"Train": data.Train, "Eval": data.evaluated.get("Eval")}
    indexes = {}
    for part, split in splits.items():
        if split is None:
            raise UserError(f"--learning-curve needs DataLoader.{part}; set it in the config")
        index = split.dataset.read(classes) if split.dataset.in_files else None
        if not isinstance(index, FileIndex) or split.dataset.labels == "several":
            raise UserError(
                f"--learning-curve needs images in separate files with one label each, found "
                f"{split.dataset.kind} in DataLoader.{part}; use a data set such as ImageFolderDataset"
            )
        indexes[part] = index
    return indexes


def write_part(
    tree: Tree,
    data: DataLoader,
    indexes: dict[str, FileIndex],
    masks: dict[str, NDArray[np.bool_]],
    run: Path,
) -> Path:
    """Writes the image lists and the config of a run with a part of the images beside its output folder.

    Args:
        tree: Config of the run with all images as plain data.
        data: Data sets of the config.
        indexes: Result of `read_splits`.
        masks: Images to use, [N] bool, by the name of the split.
        run: Output folder of the run, whose parent folder exists.

    Returns:
        Path of the config.
    """
    loaders = dict(tree["DataLoader"])
    for part in _PARTS:
        listing = run.with_name(f"{run.name}_{part.lower()}.txt")
        write_list(listing, indexes[part], masks[part], " ")
        dataset = loaders[part]["dataset"]
        loaders[part] = {
            **loaders[part],
            "dataset": {
                "name": "ImageNetDataset",
                "image_root": str(indexes[part].root),
                "cls_label_path": str(listing),
                "delimiter": " ",
                **{key: dataset[key] for key in _CHAIN_KEYS if key in dataset},
            },
        }
    infer = tree["Infer"]
    names = data.Train.dataset.folder_classes if data.Train is not None else ()
    if names and infer is not None:
        write_class_names(run.with_name(LABEL_LIST), names)
        post: dict[str, Any] = {**infer["PostProcess"], "class_id_map_file": str(run.with_name(LABEL_LIST))}
        infer = {**infer, "PostProcess": post}
    settings = {
        **tree["Global"],
        "output_dir": str(run),
        "save_inference_dir": str(run / "inference"),
        "audit_images": 0,
    }
    changed = {**tree, "DataLoader": loaders, "Infer": infer, "Global": settings}
    file = run.with_name(f"{run.name}.yaml")
    write_text(file, dump_config(validate(changed, "--learning-curve")))
    return file

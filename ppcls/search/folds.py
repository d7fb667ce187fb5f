"""Implements ``ppcls train --folds K``: stratified cross-validation with one report about all folds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.arch.distillation_model import AnyArch
from ppcls.config.base.tree import Tree
from ppcls.data.index.base import Dataset
from ppcls.data.index.class_folders import LABEL_LIST
from ppcls.data.index.class_names import write_class_names
from ppcls.data.index.files import FileIndex
from ppcls.data.index.split import write_list
from ppcls.data.section import DataLoader
from ppcls.errors import UserError
from ppcls.files import write_text
from ppcls.recipe.load import dump_config, validate
from ppcls.report.record import EvalRecord
from ppcls.runtime.launch import check_single_process
from ppcls.search.page import render_page
from ppcls.search.trials import last_lines, read_evaluations, start_training

PAGE = "folds.html"
TABLE = "folds.json"
_CHAIN_KEYS = ("transform_ops", "batch_transform_ops", "on_error", "max_errors", "bad_images", "follow_links")


def cross_validate(
    tree: Tree,
    data: DataLoader,
    arch: AnyArch,
    folds: int,
    output_dir: Path,
    report: Callable[[str], None],
) -> str:
    """Trains one model per fold, evaluates it on the images of the fold, and writes a report.

    The folds divide the images of ``DataLoader.Train``. If these images are a random part of a folder of
    images, the folds divide the whole folder.

    Args:
        tree: Config of the runs as plain data.
        data: Data sets of the config. ``Eval`` provides the transforms and the batch size for evaluation.
        arch: Architecture of the model.
        folds: Number of folds.
        output_dir: Existing folder for the report, the image lists and the runs.
        report: Function that receives a line about each fold.

    Returns:
        A line of text with the mean and standard deviation of each metric.

    Raises:
        UserError: The data cannot be split, or a run fails.
    """
    check_single_process("--folds")
    retrieval = tree["Global"]["eval_mode"] == "retrieval"
    if data.Train is None or "Eval" not in data.evaluated or retrieval:
        raise UserError(
            "--folds needs DataLoader.Train, DataLoader.Eval and Global.eval_mode: classification; set them "
            "in the config"
        )
    dataset = data.Train.dataset.unsplit()
    index = read_images(dataset, arch.class_num)
    masks = split_folds(index.labels, folds, tree["Global"]["seed"])
    files = write_folds(tree, dataset, index, masks, output_dir)
    results: list[EvalRecord] = []
    for number, file in enumerate(files, start=1):
        log = output_dir / f"fold_{number}.log"
        report(f"fold {number} of {folds}: training; {log} shows the progress")
        with start_training(file, [], log) as process:
            code = process.wait()
        records = read_evaluations(output_dir / f"fold_{number}")
        if code or not records:
            raise UserError(f"--folds: fold {number} failed: {last_lines(log)}; see {log}")
        best = [record for record in records if record.best] or records
        results.append(best[-1])
        report(f"fold {number} of {folds}: {_describe(best[-1].metrics)}, epoch {best[-1].epoch}")
    return _write_report(arch.name, results, output_dir)


def read_images(dataset: Dataset, classes: int) -> FileIndex:
    """Returns the images to divide, which must be separate files.

    Raises:
        UserError: The images are in a container, or are parts of files.
    """
    if not dataset.in_files:
        raise UserError(
            f"--folds needs images in separate files, got {dataset.kind}; use a data set such as "
            "ImageFolderDataset"
        )
    index = dataset.read(classes)
    if not isinstance(index, FileIndex):
        raise UserError(
            f"--folds needs whole images, but {dataset.kind} crops them; store the cropped images as files"
        )
    return index


def write_folds(
    tree: Tree, dataset: Dataset, index: FileIndex, masks: Sequence[NDArray[np.bool_]], output_dir: Path
) -> list[Path]:
    """Writes the image lists and the config of each fold, and returns the paths of the configs.

    Args:
        tree: Config of the runs as plain data, in which the data sets and the output folder are replaced.
        dataset: Data set of all images.
        index: All images.
        masks: Images that each fold holds out, see `split_folds`.
        output_dir: Existing folder for the files.
    """
    if dataset.class_root is not None and tree["Infer"] is not None:
        write_class_names(output_dir / LABEL_LIST, dataset.folder_classes)
        tree["Infer"]["PostProcess"].setdefault("class_id_map_file", None)
        tree["Infer"]["PostProcess"]["class_id_map_file"] = str(output_dir / LABEL_LIST)
    several = dataset.labels == "several"
    configs = []
    for number, held_out in enumerate(masks, start=1):
        for part, chosen in (("Train", ~held_out), ("Eval", held_out)):
            listing = output_dir / f"fold_{number}_{part.lower()}.txt"
            write_list(listing, index, chosen, "\t" if several else " ")
            split = tree["DataLoader"][part]["dataset"]
            settings = {key: split[key] for key in _CHAIN_KEYS if key in split}
            tree["DataLoader"][part]["dataset"] = {
                "name": "MultiLabelDataset" if several else "ImageNetDataset",
                "image_root": str(index.root),
                "cls_label_path": str(listing),
                "delimiter": "\t" if several else " ",
                **({"label_ratio": split.get("label_ratio", False)} if several else {}),
                **settings,
            }
        tree["Global"]["output_dir"] = str(output_dir / f"fold_{number}")
        file = output_dir / f"fold_{number}.yaml"
        write_text(file, dump_config(validate(tree, "--folds")))
        configs.append(file)
    return configs


def split_folds(labels: NDArray[Any], folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Returns a mask [N] per fold, which is True for the images that the fold holds out.

    Args:
        labels: Class of each image, [N], or several labels per image, [N, C]. Each fold gets an equal share
            of each class. Images with several labels are split at random.
        folds: Number of folds, at least 2.
        seed: Seed for shuffling.

    Raises:
        UserError: The data set or a class has fewer images than there are folds.
    """
    from sklearn.model_selection import KFold, StratifiedKFold  # slow to import

    counts = np.array([len(labels)]) if labels.ndim == 2 else np.unique(labels, return_counts=True)[1]
    if counts.min() < folds:
        smallest = "the data set" if labels.ndim == 2 else "the smallest class"
        raise UserError(f"--folds {folds}: {smallest} has only {counts.min()} images; use fewer folds")
    kind = KFold if labels.ndim == 2 else StratifiedKFold
    splitter = kind(folds, shuffle=True, random_state=seed)
    targets = None if labels.ndim == 2 else labels
    masks = []
    for _, held_out in splitter.split(np.zeros(len(labels)), targets):
        masks.append(np.isin(np.arange(len(labels)), held_out))
    return masks


def _describe(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _write_report(model: str, results: list[EvalRecord], output_dir: Path) -> str:
    columns = {"loss": [record.loss for record in results]}
    columns |= {name: [record.metrics[name] for record in results] for name in results[0].metrics}
    mean = {name: float(np.mean(values)) for name, values in columns.items()}
    deviation = {name: float(np.std(values, ddof=1)) for name, values in columns.items()}
    rows = [
        [f"fold {number}", str(record.epoch), *(f"{columns[name][number - 1]:.4f}" for name in columns)]
        for number, record in enumerate(results, start=1)
    ]
    rows += [["mean", "", *(f"{value:.4f}" for value in mean.values())]]
    rows += [["standard deviation", "", *(f"{value:.4f}" for value in deviation.values())]]
    folds = len(results)
    page = render_page(
        f"{folds}-fold cross-validation of {model}",
        [
            "The table shows the best evaluation of each fold, on images that were not used for training. "
            f"The runs are in {output_dir}."
        ],
        ["", "epoch", *columns],
        rows,
        [folds, folds + 1],
    )
    write_text(output_dir / PAGE, page)
    write_text(
        output_dir / TABLE,
        json.dumps({"folds": columns, "mean": mean, "deviation": deviation}, indent=1) + "\n",
    )
    lines = [f"{name} {mean[name]:.4f} ± {deviation[name]:.4f}" for name in columns]
    return f"{folds} folds, mean and standard deviation: {', '.join(lines)}; report: {output_dir / PAGE}\n"

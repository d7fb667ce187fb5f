"""Implements ``ppcls train --folds K``: stratified cross-validation with one report about all folds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from subprocess import Popen, TimeoutExpired
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
from ppcls.errors import UserError, child_error, counted
from ppcls.files import write_text
from ppcls.files.tables import BYTE_ORDER_MARK
from ppcls.recipe.load import dump_config, validate
from ppcls.report.confusion import CONFUSION_FILE, class_name, confusion_csv, read_confusion
from ppcls.report.record import EvalRecord
from ppcls.report.stored_evaluation import EVALUATION_FILE, read_evaluation
from ppcls.runtime.launch import check_single_process
from ppcls.search.page import render_page
from ppcls.search.trials import evaluate_confusion, last_lines, read_evaluations, start_training

PAGE = "folds.html"
RECORDS = "metrics.jsonl"
TABLE = "folds.json"
_POLL_SECONDS = 1.0
_SHOWN_CLASSES = 8
_MAX_TABLE = 40  # number of classes of a confusion matrix that the page shows
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
    if rare := describe_rare_classes(index.labels, folds, dataset.folder_classes):
        report(rare)
    files = write_folds(tree, dataset, index, masks, output_dir)
    results: list[EvalRecord] = []
    for number, file in enumerate(files, start=1):
        log = output_dir / f"fold_{number}.log"
        report(f"fold {number} of {folds}: training; {log} shows the progress")
        with start_training(file, [], log) as process:
            code = _wait(process, output_dir / f"fold_{number}", f"fold {number} of {folds}", report)
        records = read_evaluations(output_dir / f"fold_{number}")
        if code or not records:
            raise child_error(code, f"--folds: fold {number} failed: {last_lines(log)}; see {log}")
        best = [record for record in records if record.best] or records
        results.append(best[-1])
        if not _has_confusion_of(output_dir / f"fold_{number}", best[-1]):
            report(f"fold {number} of {folds}: evaluating its best model for the confusion matrix")
            evaluate_confusion(file, output_dir / f"fold_{number}" / CONFUSION_FILE, log)
        report(f"fold {number} of {folds}: {_describe(best[-1].metrics)}, epoch {best[-1].epoch}")
    confusion = _sum_confusion([output_dir / f"fold_{number}" for number in range(1, folds + 1)])
    return _write_report(arch.name, results, confusion, output_dir)


def _wait(process: Popen[bytes], run: Path, name: str, report: Callable[[str], None]) -> int:
    """Waits for a run, reports each of its evaluations, and returns its exit code.

    Args:
        process: Process of the run.
        run: Output folder of the run.
        name: Name of the fold.
        report: Function that receives a line about each evaluation.
    """
    reported = 0
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except TimeoutExpired:
            records = read_evaluations(run) if (run / RECORDS).is_file() else []
        for record in records[reported:]:
            report(f"{name}, epoch {record.epoch}: loss {record.loss:.4f}, {_describe(record.metrics)}")
        reported = len(records)


def _has_confusion_of(run: Path, best: EvalRecord) -> bool:
    """Returns whether ``confusion.csv`` of a run is that of its best evaluation, or can't exist.

    A run that was killed between an evaluation and the report can have the file of another evaluation.
    """
    stored = read_evaluation(run / EVALUATION_FILE)
    if stored is None:
        return not (run / CONFUSION_FILE).is_file()
    return stored.is_of(best)


def _sum_confusion(runs: Sequence[Path]) -> tuple[list[str], NDArray[np.int64]] | None:
    """Returns the names of the classes, and the sum of the confusion matrices of the best evaluations.

    Returns None if the runs have none, for several labels per image or too many classes.
    """
    total: NDArray[np.int64] | None = None
    names: list[str] = []
    for run in runs:
        file = run / CONFUSION_FILE
        if not file.is_file():
            return None
        matrix, names = read_confusion(file)
        total = matrix if total is None else total + matrix
    return None if total is None else (names, total)


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
        labels: Class of each image, [N], or several labels per image, [N, C]. The numbers of images of a
            class in two folds differ by at most 1. A class with fewer images than folds is missing in some
            folds. Images with several labels are split at random.
        folds: Number of folds, at least 2.
        seed: Seed for shuffling.

    Raises:
        UserError: The data set has fewer images than there are folds.
    """
    if len(labels) < folds:
        raise UserError(
            f"--folds {folds}: the data set has only {counted(len(labels), 'image')}; use fewer folds"
        )
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    if labels.ndim == 1:
        shuffled = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # The images of a class follow one another, so they are distributed over consecutive folds.
    of_image = np.empty(len(labels), np.int64)
    of_image[shuffled] = np.arange(len(labels)) % folds
    return [of_image == number for number in range(folds)]


def describe_rare_classes(labels: NDArray[Any], folds: int, names: Sequence[str]) -> str:
    """Returns a line about classes with fewer images than folds; empty if there are none.

    Args:
        labels: See `split_folds`.
        folds: Number of folds.
        names: Names of the classes; may be empty.
    """
    if labels.ndim == 2:
        return ""
    classes, counts = np.unique(labels, return_counts=True)
    rare = [
        f"{class_name(names, label)} ({count})"
        for label, count in zip(classes.tolist(), counts.tolist(), strict=True)
        if count < folds
    ]
    if not rare:
        return ""
    shown = ", ".join(rare[:_SHOWN_CLASSES]) + (" …" if len(rare) > _SHOWN_CLASSES else "")
    return (
        f"classes with fewer images than the {counted(folds, 'fold')}, which some evaluations lack: {shown}"
    )


def _describe(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _write_report(
    model: str,
    results: list[EvalRecord],
    confusion: tuple[list[str], NDArray[np.int64]] | None,
    output_dir: Path,
) -> str:
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
    if confusion is not None:
        names, matrix = confusion
        write_text(output_dir / CONFUSION_FILE, BYTE_ORDER_MARK + confusion_csv(matrix, names))
        page += _confusion_table(names, matrix)
    write_text(output_dir / PAGE, page)
    write_text(
        output_dir / TABLE,
        json.dumps({"folds": columns, "mean": mean, "deviation": deviation}, indent=1) + "\n",
    )
    lines = [f"{name} {mean[name]:.4f} ± {deviation[name]:.4f}" for name in columns]
    return (
        f"{counted(folds, 'fold')}, mean and standard deviation: {', '.join(lines)}; report: "
        f"{output_dir / PAGE}\n"
    )


def _confusion_table(names: Sequence[str], matrix: NDArray[np.int64]) -> str:
    """Returns HTML with the confusion matrix of all folds: each image, predicted by a model without it."""
    title = "<h2>Out-of-fold confusion matrix</h2>"
    text = (
        f"<p>Each image is evaluated once, by the model that was trained without it. Rows are the true "
        f'classes, columns the predicted ones; <a href="{CONFUSION_FILE}">{CONFUSION_FILE}</a> has the same '
        f"numbers. The accuracy over all {counted(int(matrix.sum()), 'image')} is "
        f"{matrix.trace() / max(1, matrix.sum()):.4f}.</p>"
    )
    if len(names) > _MAX_TABLE:
        return f"{title}\n{text}\n"
    header = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    rows = "\n".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{count}</td>' for count in counts)}</tr>"
        for name, counts in zip(names, matrix.tolist(), strict=True)
    )
    return f"{title}\n{text}\n<table id=confusion><tr>{header}</tr>\n{rows}\n</table>\n"

"""``python benchmarks/run.py predictions``: draws calibration and confusion of the best models of runs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ppcls.cli.arguments.options import argument, option
from ppcls.cli.command import command, write_output
from ppcls.errors import UserError
from ppcls.files import atomic_write
from ppcls.report.confusion import (
    CONFUSION_FILE,
    confused_pairs,
    expected_calibration_error,
    reliability_bins,
)
from ppcls.report.record import Outcomes
from ppcls.report.stored_evaluation import EVALUATION_FILE, read_evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CLASSES = 30  # whose names and numbers fit into the picture of a confusion matrix
_PAIRS = 3  # number of confused pairs in the table
# SVG files have text as text, and are equal for equal results.
_SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "ppcls", "font.size": 9}


@dataclass(frozen=True, kw_only=True)
class PredictionsOptions:
    """Draw the calibration and the confusion matrix of finished runs, from their best evaluations.

    Writes calibration.svg, with one curve per run, and a confusion matrix per run, confusion-RUN.svg. The
    files evaluation.npz and confusion.csv in the folder of a run are sufficient, so neither the model nor a
    GPU is necessary.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py predictions output/fashion_mnist_wrn",
        "python benchmarks/run.py predictions accuracy/ppcls_seed1 vit=accuracy/vit/ppcls_seed1 --out charts",
    )

    runs: tuple[str, ...] = argument("output folders of runs; NAME=FOLDER shows NAME instead of the folder's")
    out: Path = option(Path("predictions"), "folder for the charts")
    format: Literal["png", "svg"] = option("svg", "format of the charts")


@dataclass(frozen=True)
class RunPredictions:
    """The best evaluation of a run.

    Attributes:
        name: Name of the run in charts.
        epoch: Epoch of the evaluation.
        confusion: Number of images by true class and predicted class, [classes, classes] int64.
        confidences: See `Outcomes.confidences`.
        classes: Names of the classes.
    """

    name: str
    epoch: int
    confusion: NDArray[np.int64]
    confidences: NDArray[np.int64]
    classes: tuple[str, ...]

    @property
    def top1(self) -> float:
        """Share of the images that are predicted correctly, 0 to 1."""
        return float(self.confusion.trace() / self.confusion.sum())

    @property
    def confidence(self) -> float:
        """Mean probability of the predicted class, 0 to 1."""
        images = self.confidences.sum(axis=0)
        centres = (np.arange(len(images)) + 0.5) / len(images)
        return float((images * centres).sum() / images.sum())

    def describe(self) -> str:
        """Returns a row of the table."""
        error = expected_calibration_error(reliability_bins(self.confidences))
        pairs = confused_pairs(self.confusion, self.classes, _PAIRS)
        text = ", ".join(f"{pair.label} as {pair.predicted} {pair.share:.1%}" for pair in pairs)
        return (
            f"| {self.name} | {self.epoch} | {self.confusion.sum():,} | {self.top1:.4f} | "
            f"{self.confidence:.4f} | {error:.4f} | {text} |\n"
        )


@command("predictions", PredictionsOptions)
def draw_predictions(options: PredictionsOptions) -> None:
    """Draws the charts, and prints a table."""
    runs = [read_predictions(run) for run in options.runs]
    names = [run.name for run in runs]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"several runs have the name {repeated[0]}; name them with NAME=FOLDER")
    options.out.mkdir(parents=True, exist_ok=True)
    from matplotlib import rc_context

    with rc_context(_SVG):
        _save(options, "calibration", _draw_calibration(runs))
        for run in runs:
            _save(options, f"confusion-{run.name}", _draw_confusion(run))
    write_output("| run | epoch | images | top1 | mean confidence | calibration error | most confused |\n")
    write_output("| --- | --- | --- | --- | --- | --- | --- |\n")
    for run in runs:
        write_output(run.describe())
    write_output(f"charts written to {options.out}\n")


def read_predictions(run: str) -> RunPredictions:
    """Reads the best evaluation of a run.

    Args:
        run: Output folder, or ``NAME=FOLDER``.

    Raises:
        UserError: The folder has no evaluation with one label per image and a confusion matrix.
    """
    name, equals, path = run.partition("=")
    folder = Path(path if equals else run)
    name = name if equals else folder.resolve().name
    if not name or "/" in name:
        raise UserError(f"{run}: expected FOLDER or NAME=FOLDER, with a name without slashes")
    file = folder / EVALUATION_FILE
    stored = read_evaluation(file)
    if stored is None:
        raise UserError(f"{file}: expected the evaluation of a run; name the output folder of a finished run")
    outcomes = stored.outcomes
    if not isinstance(outcomes, Outcomes) or outcomes.confusion is None:
        raise UserError(f"{file}: expected one label per image and a confusion matrix, found neither")
    classes = _class_names(folder / CONFUSION_FILE, len(outcomes.confusion))
    return RunPredictions(name, stored.epoch, outcomes.confusion, outcomes.confidences, classes)


def _class_names(file: Path, count: int) -> tuple[str, ...]:
    """Returns the names of the classes in the first row of a confusion matrix; numbers without the file."""
    if file.is_file():
        with file.open(encoding="utf-8-sig", newline="") as table:
            _, *names = next(csv.reader(table), [""])
        if len(names) == count:
            return tuple(names)
    return tuple(map(str, range(count)))


def _save(options: PredictionsOptions, name: str, figure: Figure) -> None:
    metadata = {"Date": None} if options.format == "svg" else None
    with atomic_write(options.out / f"{name}.{options.format}") as file:
        figure.savefig(file, format=options.format, dpi=120, metadata=metadata)


def _draw_calibration(runs: Sequence[RunPredictions]) -> Figure:
    """Draws accuracy over confidence, and the number of images in each interval of confidence."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(5.2, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color="#888888", linestyle="--", linewidth=1, label="perfect calibration")
    for run in runs:
        bins = reliability_bins(run.confidences)
        x = [each.confidence for each in bins]
        upper.plot(x, [each.accuracy for each in bins], marker="o", markersize=4, label=run.name)
        lower.plot(x, [each.images for each in bins], marker="o", markersize=3)
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    upper.legend(frameon=False)
    lower.set(yscale="log", ylim=(1, None), xlabel="probability of the predicted class", ylabel="images")
    lower.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _draw_confusion(run: RunPredictions) -> Figure:
    """Draws the share of the images of each class that are predicted as each class."""
    from matplotlib.figure import Figure

    shares = run.confusion / np.maximum(run.confusion.sum(axis=1, keepdims=True), 1)
    mistakes = shares * (1 - np.eye(len(shares)))
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    axes: Axes = figure.subplots()
    # The colours show mistakes, because the correct predictions are far more frequent.
    image = axes.imshow(100 * mistakes, cmap="Oranges", vmin=0)
    figure.colorbar(image, label="mistakes in % of the images of the class")
    axes.set(xlabel="predicted class", ylabel="true class", title=f"{run.name}: top1 {run.top1:.4f}")
    if len(shares) > _MOST_CLASSES:
        return figure
    ticks = range(len(shares))
    axes.set_xticks(ticks, run.classes, rotation=45, ha="right")
    axes.set_yticks(ticks, run.classes)
    for row, column in np.argwhere(run.confusion > 0):
        dark = mistakes[row, column] > 0.6 * mistakes.max()
        text = f"{100 * shares[row, column]:.1f}"
        colour = "white" if dark else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    return figure

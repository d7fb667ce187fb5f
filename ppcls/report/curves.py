"""A run's curves as one picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.files import atomic_path
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.series import COLOURS, describe_gaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY = "#666666"


def _epochs(records: Sequence[StepRecord]) -> list[float]:
    """Returns how many epochs were done at each record, with the running one's fraction."""
    return [each.epoch - 1 + each.step / each.steps_per_epoch for each in records]


def _names(records: Iterable[StepRecord | EvalRecord]) -> list[str]:
    """Returns the metrics' names, in the order of their first appearance."""
    return list(dict.fromkeys(name for each in records for name in each.metrics))


def _plot(axes: Axes, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    """Draws a line; a value between gaps, which are not finite, is a dot."""
    there = [False, *(math.isfinite(each) for each in y), False]
    alone = [place for place in range(len(y)) if there[place : place + 3] == [False, True, False]]
    dots: dict[str, Any] = {"marker": ".", "markevery": alone} if alone else {}
    axes.plot(x, y, **dots, **style)


def _draw_loss(axes: Axes, steps: Sequence[StepRecord], evals: Sequence[EvalRecord]) -> None:
    if steps:
        losses = [each.loss for each in steps]
        _plot(axes, _epochs(steps), losses, color=COLOURS[0], linewidth=1, label="train")
    if evals:
        epochs = [each.epoch for each in evals]
        axes.plot(epochs, [each.loss for each in evals], "o-", color=COLOURS[1], markersize=4, label="eval")


def _draw_metrics(axes: Axes, steps: Sequence[StepRecord], evals: Sequence[EvalRecord]) -> None:
    for place, name in enumerate(_names([*evals, *steps])):
        colour = COLOURS[place % len(COLOURS)]
        trained = [each for each in steps if name in each.metrics]
        if trained:
            values = [each.metrics[name] for each in trained]
            label = f"train {name}"
            _plot(axes, _epochs(trained), values, color=colour, linewidth=1, alpha=0.45, label=label)
        tested = [each for each in evals if name in each.metrics]
        if tested:
            values = [each.metrics[name] for each in tested]
            axes.plot(
                [each.epoch for each in tested],
                values,
                "o-",
                color=colour,
                markersize=4,
                label=f"eval {name}",
            )
    best = next((each for each in reversed(evals) if each.best and each.metrics), None)
    if best is not None:
        name, value = next(iter(best.metrics.items()))
        label = f"best {name} {value:.4f}, epoch {best.epoch}"
        axes.plot(
            [best.epoch], [value], "*", color="#fdb863", markeredgecolor="k", markersize=13, label=label
        )


def _draw_rate(axes: Axes, steps: Sequence[StepRecord]) -> None:
    axes.plot(_epochs(steps), [each.learning_rate for each in steps], color=COLOURS[2])
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))


def _draw_speed(axes: Axes, steps: Sequence[StepRecord]) -> None:
    epochs = _epochs(steps)
    axes.plot(epochs, [each.images_per_second for each in steps], color=COLOURS[0])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("images/s", color=COLOURS[0])
    waits = axes.twinx()
    waits.plot(epochs, [100 * each.data_wait for each in steps], color=COLOURS[4], linewidth=1)
    waits.set_ylim(0, 100)
    waits.set_ylabel("waiting for data, %", color=COLOURS[4])
    waits.spines["top"].set_visible(False)


def _finish(axes: Axes, title: str, empty: bool) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("epoch")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.25)
    axes.spines["top"].set_visible(False)
    if empty:
        axes.text(0.5, 0.5, "no records yet", color=_GREY, ha="center", va="center", transform=axes.transAxes)
    elif axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize="small")


def draw_curves(records: Sequence[StepRecord | EvalRecord], path: Path) -> None:
    """Draws loss, metrics, learning rate and speed over epochs into the PNG file ``path``, atomically.

    Any number of records will do, also none.
    """
    # Imported here: an evaluation or a test of the loop need not wait for it.
    from matplotlib.figure import Figure

    steps = [each for each in records if isinstance(each, StepRecord)]
    evals = [each for each in records if isinstance(each, EvalRecord)]
    figure = Figure(figsize=(12, 7.5), dpi=120)
    figure.subplots_adjust(left=0.06, right=0.94, bottom=0.08, top=0.95, wspace=0.2, hspace=0.28)
    (loss, metrics), (rate, speed) = figure.subplots(2, 2)
    _draw_loss(loss, steps, evals)
    _draw_metrics(metrics, steps, evals)
    _draw_rate(rate, steps)
    _draw_speed(speed, steps)
    _finish(loss, "Loss", empty=not records)
    loss.set_title(describe_gaps(records), loc="right", fontsize="small", color=_GREY)
    _finish(metrics, "Metrics", empty=not _names(records))
    _finish(rate, "Learning rate", empty=not steps)
    _finish(speed, "Speed", empty=not steps)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


class Curves:
    """Draws the file ``records`` into the picture ``picture`` after each evaluation and at the end."""

    def __init__(self, records: Path, picture: Path) -> None:
        self._records = records
        self._picture = picture
        self._stale = False

    def message(self, text: str) -> None:
        """Does nothing: a message has no curve."""

    def train(self, record: StepRecord) -> None:  # noqa: ARG002
        """Notes that there is something to draw."""
        self._stale = True

    def evaluation(self, record: EvalRecord) -> None:  # noqa: ARG002
        """Draws."""
        self._draw()

    def close(self) -> None:
        """Draws what came after the last evaluation."""
        if self._stale:
            self._draw()

    def _draw(self) -> None:
        draw_curves(read_records(self._records), self._picture)
        self._stale = False

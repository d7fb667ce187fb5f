"""Summarizes the measured times of optimizer updates in a table, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ppcls.errors import counted
from ppcls.report.summary.rounding import format_ratio

COLUMNS = ("data wait", "forward", "backward", "all-reduce", "optimizer", "host")
_BACKWARD = COLUMNS.index("backward")
_ALL_REDUCE = COLUMNS.index("all-reduce")


@dataclass(frozen=True)
class StepTimes:
    """Measured times of optimizer updates.

    Attributes:
        seconds: [ranks, updates, 6] float64, duration of each phase in `COLUMNS`. Their sum is the duration
            of the update.
        after: [updates] bool, whether the ranks exchanged gradients after the backward pass, as a separate
            phase. Otherwise the exchange is part of the backward pass.
        first: First measured update, counted from 0 when the run starts or resumes.
        images: Number of images of a full update, over all ranks.
        on_gpu: Whether the device is a GPU.
        ordinary: Mean seconds of earlier updates without timed phases and without a trace; None if unknown.
    """

    seconds: NDArray[np.float64]
    after: NDArray[np.bool_]
    first: int
    images: int
    on_gpu: bool
    ordinary: float | None


@dataclass(frozen=True)
class PhaseSummary:
    """Durations of one phase.

    Attributes:
        mean_ms: Mean in milliseconds.
        median_ms: Median in milliseconds.
        max_ms: Maximum in milliseconds.
        share: Share of the total time of the updates, 0..1.
    """

    mean_ms: float
    median_ms: float
    max_ms: float
    share: float


@dataclass(frozen=True)
class StepTable:
    """Table of the times of rank 0.

    Attributes:
        steps: First profiled update, and first update after the profile.
        rows: Summaries, keyed by phase. All-reduce is missing if it cannot be separated from backward; this
            needs two ranks and two updates.
        step: Summary of the whole update.
        images_per_second: Throughput, computed from the median duration of an update.
        ordinary_ms: Duration of an update outside the profile; None if it was not measured.
        all_reduce_alone_ms: Median duration of the exchange after backward, including the wait for other
            ranks; None if it was not measured.
        own_ms: Median duration of an update of each rank, without the exchange. Empty for one rank.
        notes: Remarks that help to read the table.
    """

    steps: tuple[int, int]
    rows: dict[str, PhaseSummary]
    step: PhaseSummary
    images_per_second: float
    ordinary_ms: float | None
    all_reduce_alone_ms: float | None
    own_ms: tuple[float, ...]
    notes: tuple[str, ...]


def summarize(times: StepTimes) -> StepTable:
    """Returns the table of the measured times.

    The time of all-reduce is the duration of a backward pass with the exchange, minus the median duration of
    a backward pass without the exchange. This is the part of the exchange that does not overlap.
    """
    ranks, updates, _ = times.seconds.shape
    separated = bool(times.after.any())
    rows = _separate_exchange(times.seconds[0], times.after)
    total = rows.sum(1)
    shown = [i for i, _ in enumerate(COLUMNS) if i != _ALL_REDUCE or separated]
    alone = float(np.median(times.seconds[0, times.after, _ALL_REDUCE])) * 1e3 if separated else None
    return StepTable(
        steps=(times.first, times.first + updates),
        rows={COLUMNS[i]: _summarize_phase(rows[:, i], total) for i in shown},
        step=_summarize_phase(total, total),
        images_per_second=times.images / float(np.median(total)),
        ordinary_ms=None if times.ordinary is None else times.ordinary * 1e3,
        all_reduce_alone_ms=alone,
        own_ms=_median_without_exchange(times) if ranks > 1 else (),
        notes=_notes(times, separated),
    )


def _separate_exchange(seconds: NDArray[np.float64], after: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns the updates that exchange gradients during backward. Separates all-reduce from backward.

    Args:
        seconds: [updates, 6] float64, durations of all updates.
        after: See `StepTimes`.
    """
    if not after.any():
        return seconds
    alone = np.median(seconds[after, _BACKWARD])
    rows = seconds[~after].copy()
    both = rows[:, _BACKWARD]
    rows[:, _ALL_REDUCE] = np.maximum(both - alone, 0.0)
    rows[:, _BACKWARD] = np.minimum(both, alone)
    return rows


def _median_without_exchange(times: StepTimes) -> tuple[float, ...]:
    """Returns the median milliseconds per update of each rank, without the exchange.

    The exchange would make all ranks equal, because they wait for each other.
    """
    chosen = times.seconds[:, times.after] if times.after.any() else times.seconds
    without = np.delete(chosen, _ALL_REDUCE, axis=2).sum(2)
    return tuple((np.median(without, axis=1) * 1e3).tolist())


def _summarize_phase(seconds: NDArray[np.float64], total: NDArray[np.float64]) -> PhaseSummary:
    mean, median, longest = (float(f(seconds)) * 1e3 for f in (np.mean, np.median, np.max))
    return PhaseSummary(mean, median, longest, float(seconds.sum() / total.sum()))


def _notes(times: StepTimes, separated: bool) -> tuple[str, ...]:
    notes = []
    if times.on_gpu:
        notes.append(
            "in profiled updates the host waits for the GPU between phases, so only all-reduce and data "
            "loading overlap with other work"
        )
    if separated:
        notes.append(
            f"{int(times.after.sum())} of the {counted(len(times.after), 'update')} exchanged gradients "
            "after backward, to measure both phases separately; the table shows the other updates"
        )
    elif len(times.seconds) > 1:
        notes.append("backward includes all-reduce; profile at least two updates to measure both separately")
    return tuple(notes)


def as_json(table: StepTable) -> str:
    """Returns the table as a JSON object. Times are in milliseconds."""
    return json.dumps(asdict(table), indent=2) + "\n"


def as_text(table: StepTable) -> str:
    """Returns the table as lines of text."""
    first, stop = table.steps
    ranks = f", rank 0 of {len(table.own_ms)}" if table.own_ms else ""
    lines = [
        f"profile of updates {first} to {stop - 1} of this run{ranks}, milliseconds per update:",
        f"{'':<10} {'mean':>9} {'median':>9} {'max':>9} {'share':>6}",
    ]
    for name, row in {**table.rows, "update": table.step}.items():
        values = f"{row.mean_ms:9.3f} {row.median_ms:9.3f} {row.max_ms:9.3f} {row.share:6.1%}"
        lines.append(f"{name:<10} {values}")
    lines.append(f"{table.images_per_second:.1f} img/s, computed from the median update")
    if table.ordinary_ms is not None:
        slower = format_ratio([table.step.mean_ms / table.ordinary_ms])
        lines.append(
            f"earlier updates without profiling: {table.ordinary_ms:.3f} ms on average; "
            f"a profiled update takes {slower} times as long"
        )
    if table.all_reduce_alone_ms is not None:
        lines.append(
            "all-reduce: the time that the exchange adds to backward; a separate exchange takes "
            f"{table.all_reduce_alone_ms:.3f} ms, including the wait for other ranks"
        )
    if table.own_ms:
        slowest = int(np.argmax(table.own_ms))
        lines.append(
            f"slowest rank: {slowest}, {table.own_ms[slowest]:.3f} ms per update without the exchange; "
            f"rank 0 takes {table.own_ms[0]:.3f} ms"
        )
    return "\n".join([*lines, *table.notes]) + "\n"

"""Where a step's time went: measured times to a table, as text and as JSON. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("data wait", "forward", "backward", "all-reduce", "optimizer", "host")
_BACKWARD, _ALL_REDUCE = COLUMNS.index("backward"), COLUMNS.index("all-reduce")
_ON_GPU = "profiled steps wait for the GPU between phases, so nothing overlaps but all-reduce and data"


@dataclass(frozen=True)
class StepTimes:
    """What was measured.

    Attributes:
        seconds: [ranks, steps, 6] float64, of each phase in `COLUMNS`; a step is their sum.
        after: [steps] bool, steps whose ranks exchanged gradients after the backward pass, as a phase of
            its own; in all others the exchange is a part of backward.
        first: First step, from 0 where the run started or went on.
        images: Of a full step, over all ranks.
        on_gpu: Whether the device is a GPU.
        ordinary: Mean seconds of the steps before, measured as a whole and without a trace; None without.
    """

    seconds: NDArray[np.float64]
    after: NDArray[np.bool_]
    first: int
    images: int
    on_gpu: bool
    ordinary: float | None


@dataclass(frozen=True)
class Row:
    """One phase over the steps: milliseconds, and its share of a step's mean, 0..1."""

    mean_ms: float
    median_ms: float
    max_ms: float
    share: float


@dataclass(frozen=True)
class StepTable:
    """The table, of rank 0.

    Attributes:
        steps: First step and the one after the last.
        rows: By phase; without all-reduce where there is one rank, or one step, which can't tell the
            exchange from backward.
        step: The whole step.
        images_per_second: By the median step.
        ordinary_ms: A step outside the profile; None where none was measured.
        all_reduce_alone_ms: Median of the exchange after backward, waiting for other ranks included.
        own_ms: Each rank's step without the exchange, median; empty for one rank.
        notes: What to know about the figures.
    """

    steps: tuple[int, int]
    rows: dict[str, Row]
    step: Row
    images_per_second: float
    ordinary_ms: float | None
    all_reduce_alone_ms: float | None
    own_ms: tuple[float, ...]
    notes: tuple[str, ...]


def summarize(times: StepTimes) -> StepTable:
    """Makes the table.

    Backward with the exchange less the median of backward without it is what the exchange costs: the part
    of it that does not hide behind the backward pass.
    """
    ranks, steps, _ = times.seconds.shape
    told_apart = bool(times.after.any())
    rows = _as_trained(times.seconds[0], times.after)
    total = rows.sum(1)
    shown = [i for i, _ in enumerate(COLUMNS) if i != _ALL_REDUCE or told_apart]
    alone = float(np.median(times.seconds[0, times.after, _ALL_REDUCE])) * 1e3 if told_apart else None
    return StepTable(
        steps=(times.first, times.first + steps),
        rows={COLUMNS[i]: _row(rows[:, i], total) for i in shown},
        step=_row(total, total),
        images_per_second=times.images / float(np.median(total)),
        ordinary_ms=None if times.ordinary is None else times.ordinary * 1e3,
        all_reduce_alone_ms=alone,
        own_ms=_own(times) if ranks > 1 else (),
        notes=_notes(times, told_apart),
    )


def _as_trained(seconds: NDArray[np.float64], after: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns [steps, 6] of the steps that exchange as training does, the exchange taken out of backward."""
    if not after.any():
        return seconds
    alone = np.median(seconds[after, _BACKWARD])
    rows = seconds[~after].copy()
    both = rows[:, _BACKWARD]
    rows[:, _ALL_REDUCE] = np.maximum(both - alone, 0.0)
    rows[:, _BACKWARD] = np.minimum(both, alone)
    return rows


def _own(times: StepTimes) -> tuple[float, ...]:
    """Returns each rank's milliseconds without the exchange, in which ranks wait for each other."""
    chosen = times.seconds[:, times.after] if times.after.any() else times.seconds
    own = np.delete(chosen, _ALL_REDUCE, axis=2).sum(2)
    return tuple((np.median(own, axis=1) * 1e3).tolist())


def _row(seconds: NDArray[np.float64], total: NDArray[np.float64]) -> Row:
    mean, median, most = (float(f(seconds)) * 1e3 for f in (np.mean, np.median, np.max))
    return Row(mean, median, most, float(seconds.sum() / total.sum()))


def _notes(times: StepTimes, told_apart: bool) -> tuple[str, ...]:
    notes = [_ON_GPU] if times.on_gpu else []
    if told_apart:
        compared = f"{int(times.after.sum())} of the {len(times.after)} steps"
        notes.append(
            f"{compared} exchanged gradients after backward, to tell both apart; the table is of the others"
        )
    elif len(times.seconds) > 1:
        notes.append("backward holds the exchange: profile two steps or more to tell them apart")
    return tuple(notes)


def as_json(table: StepTable) -> str:
    """Returns the table as one JSON object, in milliseconds."""
    return json.dumps(asdict(table), indent=2) + "\n"


def as_text(table: StepTable) -> str:
    """Returns the table as lines for people."""
    first, stop = table.steps
    ranks = f", rank 0 of {len(table.own_ms)}" if table.own_ms else ""
    lines = [
        f"where a step's time went, steps {first} to {stop - 1} of this run{ranks}: milliseconds a step",
        f"{'':<10} {'mean':>9} {'median':>9} {'max':>9} {'share':>6}",
    ]
    for name, row in {**table.rows, "step": table.step}.items():
        figures = f"{row.mean_ms:9.3f} {row.median_ms:9.3f} {row.max_ms:9.3f} {row.share:6.1%}"
        lines.append(f"{name:<10} {figures}")
    lines.append(f"{table.images_per_second:.1f} img/s by the median step")
    if table.ordinary_ms is not None:
        slower = table.step.mean_ms / table.ordinary_ms
        lines.append(
            f"an ordinary step before them, neither traced nor stopped: {table.ordinary_ms:.3f} ms in the "
            f"mean; a profiled one takes {slower:.2f} times that"
        )
    if table.all_reduce_alone_ms is not None:
        lines.append(
            f"all-reduce: the row is what backward takes longer by it; on its own, after backward, it takes "
            f"{table.all_reduce_alone_ms:.3f} ms, waiting for other ranks included"
        )
    if table.own_ms:
        slowest = int(np.argmax(table.own_ms))
        lines.append(
            f"slowest rank: {slowest}, {table.own_ms[slowest]:.3f} ms a step without the exchange; "
            f"rank 0 {table.own_ms[0]:.3f}"
        )
    return "\n".join([*lines, *table.notes]) + "\n"

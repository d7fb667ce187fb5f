"""Updates whose loss or gradient is not finite: too many in a row end the run.

float16's loss scaling skips such an update, so a run gets over some. In float32 and bfloat16 nothing is
skipped: the run ends once the weights are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.data.bad_images.lists import BadImage, write_bad_images
from ppcls.data.sampling.order import Cursor
from ppcls.engine.core.gradients import UpdateOutcomes
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError

BAD_STEPS = "bad_steps.txt"
_SHOWN = 5


@dataclass(frozen=True)
class Stretch:
    """Whole updates of one epoch, one after the other, as the host saw them later.

    Attributes:
        epoch: From 0.
        step: Of its first batch within the epoch, from 0.
        update: Updates of the run before it.
        ends: [batches] bool, whether the update comes after the batch.
        losses: [ranks, batches] float64, not finite where the forward pass gave no number.
        gradients: What is known of the updates' gradients.
    """

    epoch: int
    step: int
    update: int
    ends: NDArray[np.bool_]
    losses: NDArray[np.float64]
    gradients: UpdateOutcomes

    @property
    def updates(self) -> list[slice]:
        """The batches of each update."""
        last = np.flatnonzero(self.ends) + 1
        return [slice(a, b) for a, b in zip([0, *last[:-1].tolist()], last.tolist(), strict=True)]

    def bad(self) -> NDArray[np.bool_]:
        """Returns [updates] bool, whether a loss or a gradient was not finite."""
        finite = np.isfinite(self.losses)
        return self.gradients.nonfinite | [not finite[:, batches].all() for batches in self.updates]


@dataclass(frozen=True)
class _Update:
    """One update: number from 1, and its batches by rank and place."""

    number: int
    epoch: int
    batches: list[tuple[int, int]]

    def __str__(self) -> str:
        steps = sorted({step + 1 for _, step in self.batches})
        which = f"batch {steps[0]}" if len(steps) == 1 else f"batches {steps[0]} to {steps[-1]}"
        return f"update {self.number} (epoch {self.epoch + 1}, {which})"


class BadSteps:
    """Counts bad updates in a row.

    Args:
        state: The run; looked at where it ends.
        limit: The most in a row.
        output_dir: Where `BAD_STEPS` lists the files of a bad batch.
        last_good: Finds the checkpoint to go back to; None where there is none.
    """

    def __init__(
        self, state: TrainState, limit: int, output_dir: Path, last_good: Callable[[], Path | None]
    ) -> None:
        self._state, self._limit, self._output_dir = state, limit, output_dir
        self._last_good = last_good
        self._first: _Update | None = None
        self._row = 0
        self._skipped: list[int] = []
        self._scale = 0.0

    def take(self, stretch: Stretch) -> None:
        """Takes the next stretch.

        Raises:
            UserError: Too many in a row, a loss scale below its floor, or weights that are not finite.
        """
        began = None
        for i, (bad, batches) in enumerate(zip(stretch.bad(), stretch.updates, strict=True)):
            if not bad:
                self._first, self._row = None, 0
                continue
            number = stretch.update + i + 1
            self._first, self._row = self._first or _update(stretch, number, batches), self._row + 1
            began = began or self._first
            scale = self._note_scale(stretch.gradients, i, number)
            if scale is not None and scale < stretch.gradients.min_loss_scale:
                text = (
                    f"the loss scale would fall to {scale:g}, below AMP.min_loss_scaling "
                    f"({stretch.gradients.min_loss_scale:g})"
                )
                cure = (
                    ", use -o AMP.dtype=bfloat16 where the GPU has it, or rule out cuDNN's fast BatchNorm by "
                    "FLAGS_cudnn_batchnorm_spatial_persistent=0 in the environment"
                )
                raise self._end(number, self._first, text, scale, cure)
            if self._row > self._limit:
                text = (
                    f"{self._row} updates in a row had a loss or a gradient that is not finite, "
                    f"more than Global.max_bad_steps ({self._limit})"
                )
                raise self._end(number, self._first, text, scale)
        if began is not None and not _all_finite(self._state):
            text = "loss or gradient was not finite, and so the weights are not any more"
            raise self._end(stretch.update + len(stretch.updates), began, text, None)

    def _note_scale(self, gradients: UpdateOutcomes, i: int, number: int) -> float | None:
        """Returns the loss scale after a bad update, and remembers the update where it was skipped."""
        if gradients.loss_scales is None:
            return None
        scale = float(gradients.loss_scales[i])
        if gradients.nonfinite[i]:
            self._skipped.append(number)
            self._scale = scale
        return scale

    def note(self) -> str | None:
        """Returns a line for the log where updates were skipped since the last call."""
        if not self._skipped:
            return None
        first, last, count = self._skipped[0], self._skipped[-1], len(self._skipped)
        self._skipped = []
        which = f"update {first}" if count == 1 else f"{count} updates from {first} to {last}"
        return f"{which} skipped, for gradients were not finite; the loss scale is {self._scale:g}"

    def _end(self, number: int, first: _Update, text: str, scale: float | None, cure: str = "") -> UserError:
        """Returns the error that ends the run at an update, the first bad one being ``first``."""
        since = f"; it began with {first}" if first.number != number else ""
        scaled = "" if scale is None else f", loss scale {scale:g}"
        good = self._last_good()
        kept = f"{good} ({good.resolve().name})" if good is not None else "none"
        return UserError(
            f"update {number}: {text}{since}\n"
            f"  learning rate {self._state.schedule(first.number - 1):.4g}{scaled}; "
            f"last good checkpoint: {kept}\n"
            f"  {first} was made of {self._files(first)}\n"
            f"  lower Optimizer.lr.learning_rate, warm up, give clip_norm, look at these images{cure}"
        )

    def _files(self, update: _Update) -> str:
        """Lists the files of an update's batches, and returns a few of them."""
        files = _files_of(self._state, update)
        text = ", ".join(each.name for each in files[:_SHOWN])
        if len(files) <= _SHOWN:
            return text
        text += f" and {len(files) - _SHOWN} more"
        if not self._state.runtime.is_main or not self._output_dir.is_dir():
            return text
        listing = self._output_dir / BAD_STEPS
        try:
            write_bad_images(listing, files)
        except OSError as error:
            return f"{text} ({listing} can't be written: {error.strerror})"
        return f"{text}; {listing} lists them"


def _update(stretch: Stretch, number: int, batches: slice) -> _Update:
    """Returns an update with the batches that went wrong, or all of them where only gradients did."""
    wrong = np.argwhere(~np.isfinite(stretch.losses[:, batches]))
    if not len(wrong):
        wrong = np.argwhere(np.ones_like(stretch.losses[:, batches], np.bool_))
    first = stretch.step + batches.start
    return _Update(number, stretch.epoch, [(int(rank), first + int(place)) for rank, place in wrong])


def _files_of(state: TrainState, update: _Update) -> Sequence[BadImage]:
    loader, files = state.loader, []
    for rank, step in update.batches:
        part = replace(loader.order, rank=rank).at(Cursor(update.epoch, step))
        for position in part.indices[: part.valid].tolist():
            if loader.quarantine is None or position not in loader.quarantine:
                name, where = loader.index.name(position), loader.index.where(position)
                files.append(BadImage(name, where, f"in the batch of update {update.number}, rank {rank}"))
    return files


def _all_finite(state: TrainState) -> bool:
    flags = [paddle.isfinite(each).all() for each in state.model.parameters() if not each.stop_gradient]
    return bool(paddle.stack(flags).all())

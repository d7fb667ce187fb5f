"""Ends a run after too many consecutive updates with a non-finite loss or gradient.

Such an update is called bad. With float16, loss scaling skips updates with non-finite gradients, so a few bad
updates are harmless. With float32 and bfloat16, every update changes the weights, and the run ends as soon as
the weights are non-finite.
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
from ppcls.errors import UserError, counted
from ppcls.files import real_path

BAD_STEPS = "bad_steps.txt"
_SHOWN = 5  # number of images that an error names; a file lists the others


@dataclass(frozen=True)
class UpdateRange:
    """Losses and gradient checks of consecutive updates of one epoch, on the host.

    Attributes:
        epoch: Epoch, from 0.
        step: Position of the first batch in the epoch, from 0.
        update: Number of earlier updates in the run.
        ends: [batches] bool, whether each batch ends an update.
        losses: [ranks, batches] float64, the loss of each batch.
        gradients: Overflows and loss scales of the updates.
    """

    epoch: int
    step: int
    update: int
    ends: NDArray[np.bool_]
    losses: NDArray[np.float64]
    gradients: UpdateOutcomes

    @property
    def batches(self) -> list[slice]:
        """For each update, the range of its batches."""
        last = np.flatnonzero(self.ends) + 1
        return [slice(a, b) for a, b in zip([0, *last[:-1].tolist()], last.tolist(), strict=True)]

    def bad(self) -> NDArray[np.bool_]:
        """Returns, for each update, whether a loss or gradient was non-finite: [updates] bool."""
        finite = np.isfinite(self.losses)
        return self.gradients.nonfinite | [not finite[:, batches].all() for batches in self.batches]


@dataclass(frozen=True)
class _BadUpdate:
    """A bad update.

    Attributes:
        number: Number of the update in the run, from 1.
        epoch: Epoch, from 0.
        batches: Rank and step of each of its bad batches.
    """

    number: int
    epoch: int
    batches: list[tuple[int, int]]

    def __str__(self) -> str:
        steps = sorted({step + 1 for _, step in self.batches})
        batches = f"batch {steps[0]}" if len(steps) == 1 else f"batches {steps[0]} to {steps[-1]}"
        return f"update {self.number} (epoch {self.epoch + 1}, {batches})"


class NonFiniteMonitor:
    """Counts consecutive bad updates, and raises an error if there are too many.

    Args:
        limit: Maximum number of consecutive bad updates.
        output_dir: Folder for the file `BAD_STEPS`, which lists the images of a bad update.
        last_good: Function that returns the newest intact checkpoint, or None.
    """

    def __init__(
        self, state: TrainState, limit: int, output_dir: Path, last_good: Callable[[], Path | None]
    ) -> None:
        self._state = state
        self._limit = limit
        self._output_dir = output_dir
        self._last_good = last_good
        self._first: _BadUpdate | None = None
        self._count = 0
        self._skipped: list[int] = []
        self._scale = 0.0

    def check(self, updates: UpdateRange) -> None:
        """Checks the updates after those of the previous call.

        Raises:
            UserError: Too many consecutive updates are bad, the loss scale falls below its minimum, or the
                weights are non-finite.
        """
        first_here = None
        for i, (bad, batches) in enumerate(zip(updates.bad(), updates.batches, strict=True)):
            if not bad:
                self._first = None
                self._count = 0
                continue
            number = updates.update + i + 1
            self._first = self._first or _locate(updates, number, batches)
            self._count = self._count + 1
            first_here = first_here or self._first
            scale = self._note_scale(updates.gradients, i, number)
            if scale is not None and scale < updates.gradients.min_loss_scale:
                text = (
                    f"the loss scale would fall to {scale:g}, below AMP.min_loss_scaling "
                    f"({updates.gradients.min_loss_scale:g})"
                )
                fix = (
                    ", use -o AMP.dtype=bfloat16 if the GPU supports it, or rule out cuDNN's fast BatchNorm: "
                    "set FLAGS_cudnn_batchnorm_spatial_persistent=0 in the environment"
                )
                raise self._error(number, self._first, text, scale, fix)
            if self._count > self._limit:
                text = (
                    f"{counted(self._count, 'consecutive update')} had a non-finite loss or gradient, more "
                    f"than Global.max_bad_steps ({self._limit})"
                )
                raise self._error(number, self._first, text, scale)
        if first_here is not None and not _weights_finite(self._state):
            text = "the weights are NaN or infinite after a non-finite loss or gradient"
            raise self._error(updates.update + len(updates.batches), first_here, text, None)

    def _note_scale(self, gradients: UpdateOutcomes, i: int, number: int) -> float | None:
        """Returns the loss scale after a bad update, or None. Records the update if it was skipped.

        Args:
            i: Index of the update in ``gradients``.
            number: Number of the update in the run, from 1.
        """
        if gradients.loss_scales is None:
            return None
        scale = float(gradients.loss_scales[i])
        if gradients.nonfinite[i]:
            self._skipped.append(number)
            self._scale = scale
        return scale

    def note(self) -> str | None:
        """Returns a line for the log if updates were skipped since the last call."""
        if not self._skipped:
            return None
        first = self._skipped[0]
        last = self._skipped[-1]
        count = len(self._skipped)
        self._skipped = []
        updates = f"update {first}" if count == 1 else f"{counted(count, 'update')} from {first} to {last}"
        return f"skipped {updates} because of non-finite gradients; the loss scale is {self._scale:g}"

    def _error(
        self, number: int, first: _BadUpdate, text: str, scale: float | None, fix: str = ""
    ) -> UserError:
        """Returns the error that ends the run.

        Args:
            number: Number of the update at which the run ends.
            first: First of the consecutive bad updates.
            text: Reason of the error.
            scale: Loss scale; None without loss scaling.
            fix: Additional suggestions.
        """
        since = f"; the first was {first}" if first.number != number else ""
        scaled = "" if scale is None else f", loss scale {scale:g}"
        good = self._last_good()
        checkpoint = f"{good} ({real_path(good).name})" if good is not None else "none"
        message = (
            f"update {number}: {text}{since}\n"
            f"  learning rate {self._state.learning_rate(first.number - 1):.4g}{scaled}; "
            f"last good checkpoint: {checkpoint}\n"
            f"  images of {first}: {self._describe_images(first)}\n"
            f"  lower Optimizer.lr.learning_rate or warm up; use clip_norm; check these images{fix}"
        )
        return UserError(message)

    def _describe_images(self, update: _BadUpdate) -> str:
        """Returns the names of up to five images of an update. If there are more, writes all to a file."""
        images = _images_of(self._state, update)
        text = ", ".join(image.name for image in images[:_SHOWN])
        if len(images) <= _SHOWN:
            return text
        text += f" and {len(images) - _SHOWN} more"
        if not self._state.runtime.is_main or not self._output_dir.is_dir():
            return text
        path = self._output_dir / BAD_STEPS
        try:
            write_bad_images(path, images)
        except OSError as error:
            return f"{text} ({path} can't be written: {error.strerror})"
        return f"{text}; all are listed in {path}"


def _locate(updates: UpdateRange, number: int, batches: slice) -> _BadUpdate:
    """Returns a bad update with its batches of non-finite loss, or all batches if every loss is finite."""
    wrong = np.argwhere(~np.isfinite(updates.losses[:, batches]))
    if not len(wrong):
        wrong = np.argwhere(np.ones_like(updates.losses[:, batches], np.bool_))
    first = updates.step + batches.start
    return _BadUpdate(number, updates.epoch, [(int(rank), first + int(offset)) for rank, offset in wrong])


def _images_of(state: TrainState, update: _BadUpdate) -> Sequence[BadImage]:
    loader = state.loader
    images = []
    for rank, step in update.batches:
        part = replace(loader.order, rank=rank).at(Cursor(update.epoch, step))
        for position in part.indices[: part.valid].tolist():
            if loader.quarantine is None or position not in loader.quarantine:
                name = loader.index.name(position)
                where = loader.index.where(position)
                images.append(BadImage(name, where, f"in the batch of update {update.number}, rank {rank}"))
    return images


def _weights_finite(state: TrainState) -> bool:
    flags = [paddle.isfinite(weight).all() for weight in state.model.parameters() if not weight.stop_gradient]
    return bool(paddle.stack(flags).all())

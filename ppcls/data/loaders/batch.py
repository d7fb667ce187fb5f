"""The batch that a loader yields, and the protocol of loaders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ppcls.data.bad_images.quarantine import Quarantine
    from ppcls.data.index.protocol import Index
    from ppcls.data.sampling.order import Order


@dataclass(frozen=True)
class Batch:
    """The images of one step on one rank.

    Attributes:
        image: [B, C, H, W] or [B, H, W, C], float32 or float16, on the training device.
        label: [B] int64; or [B, classes] float32: rows that sum to 1 if images are mixed, 0 or 1 for each
            class if images have several labels, values in between if both. On the training device.
        valid: Number of leading real samples, 0..B; the rows after them are padding and never counted.
        weight: Factor of this batch's mean loss in its optimizer update. With it, the update's gradient,
            averaged over ranks, is the mean over all real samples of the update.
        update: Whether the optimizer update follows this batch (gradient accumulation).
        positions: [B] int64, on the host: samples of the index in these rows; None if unknown.
        unlabelled: Number U of unlabelled images: ``image`` then has 2 U more rows, their weak and their
            strong views in the same order, for which there are no labels.
    """

    image: paddle.Tensor
    label: paddle.Tensor
    valid: int
    weight: float
    update: bool
    positions: NDArray[np.int64] | None = None
    unlabelled: int = 0


class Loader(Protocol):
    """Yields the batches of one rank. One iteration is one epoch, or its rest after `load_state_dict`.

    Attributes:
        index: The samples.
        order: The order of the samples.
        quarantine: The bad images that the run skips; None if the first one ends the run.
    """

    index: Index
    order: Order
    quarantine: Quarantine | None

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the current position to the end of the epoch."""

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch; it is equal on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded."""

    def release(self) -> None:
        """Frees threads and memory; the next iteration allocates them again."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a position that `state_dict` returned.

        Raises:
            ppcls.errors.UserError: The position is in the middle of an epoch of another order; see
            `Order.restore`.
        """


def endless(loader: Loader) -> Iterator[Batch]:
    """Yields the batches of all epochs without end."""
    while True:
        yield from loader

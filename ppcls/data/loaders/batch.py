"""Defines the batch that a loader yields, and the interface of loaders."""

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
    """The images and labels of one step on one rank.

    Attributes:
        image: [B, C, H, W] or [B, H, W, C], float32 or float16, on the training device.
        label: [B] int64, class ids; or [B, classes] float32, class probabilities of mixed images, or 0 or 1
            for each class of images with several labels. On the training device.
        valid: Number of valid rows, 0..B. The valid rows come first. All other rows are padding, which losses
            and metrics ignore.
        weight: Factor of this batch's mean loss in its optimizer update. With these factors, the gradient of
            an update, averaged over ranks, is the mean over all valid samples of the update.
        update: Whether an optimizer update follows this batch; False while gradients are accumulated.
        positions: [B] int64, on the host: position in the index of the sample in each row; None if unknown.
        unlabelled: Number U of unlabelled images. ``image`` has 2 U additional rows: first the weak views of
            these images, then their strong views in the same order. These rows have no labels.
    """

    image: paddle.Tensor
    label: paddle.Tensor
    valid: int
    weight: float
    update: bool
    positions: NDArray[np.int64] | None = None
    unlabelled: int = 0


class Loader(Protocol):
    """Yields the batches of one rank.

    One iteration yields one epoch, or the rest of an epoch after `load_state_dict`.

    Attributes:
        index: The samples.
        order: Order of the samples.
        quarantine: Collects the bad images, which the loader skips; None if the first bad image ends the run.
    """

    index: Index
    order: Order
    quarantine: Quarantine | None

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the current position to the end of the epoch."""

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch, which is equal on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded."""

    def release(self) -> None:
        """Frees threads and memory. The next iteration allocates them again."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a position that `state_dict` returned.

        Raises:
            ppcls.errors.UserError: The position is in the middle of an epoch, and the order differs from the
                order of that epoch. See `Order.restore`.
        """


def endless(loader: Loader) -> Iterator[Batch]:
    """Yields the batches of one epoch after the other, without end."""
    while True:
        yield from loader

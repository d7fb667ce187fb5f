"""What a loader gives, and what a loader is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ppcls.data.bad_images.quarantine import Quarantine
    from ppcls.data.index.read import Index
    from ppcls.data.sampling.order import Order


@dataclass(frozen=True)
class Batch:
    """One step's images on one rank.

    Attributes:
        image: [B, C, H, W] or [B, H, W, C], float32 or float16, on the training device.
        label: [B] int64; or [B, classes] float32: where images are mixed, rows that sum to 1, and where
            they have several labels, 0 or 1 for each class, or between them if both. On the training device.
        valid: Leading real samples, 0..B; the rows behind them repeat others and count nowhere.
        weight: Factor of this batch's mean loss in its optimizer update: the update's gradient,
            averaged over ranks, is then the mean over all real samples of the update.
        update: Whether the optimizer update comes after this batch (gradient accumulation).
        positions: [B] int64, on the host: which samples of the index the rows are; None where nobody knows.
    """

    image: paddle.Tensor
    label: paddle.Tensor
    valid: int
    weight: float
    update: bool
    positions: NDArray[np.int64] | None = None


class Loader(Protocol):
    """Feeds one rank. One iteration is one epoch, or what is left of it after `load_state_dict`.

    Attributes:
        index: The samples.
        order: Which of them come when.
        quarantine: Of bad images, where the run goes on without them.
    """

    index: Index
    order: Order
    quarantine: Quarantine | None

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the present position to the end of the epoch."""

    def __len__(self) -> int:
        """Returns the batches of a whole epoch, equal on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch that was yielded."""

    def release(self) -> None:
        """Lets go of threads and memory until the next iteration, which takes them again."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state_dict` gave.

        Raises:
            ppcls.errors.UserError: The position means nothing here: another global batch within an
                epoch, or another dataset size.
        """

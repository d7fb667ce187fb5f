"""Provides the base class of loaders, which tracks the position in the order of the samples."""

from __future__ import annotations

from typing import Any

import paddle

from ppcls.data.bad_images.quarantine import CleanOrder, Quarantine
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.order import BatchOrder, Cursor, Order


class OrderedLoader:
    """Base class of loaders that yield the batches of an `Order`.

    Args:
        index: The samples.
        order: Order of the samples.
        quarantine: Collects the bad images, which the loader skips; None if the first bad image ends the run.
    """

    def __init__(self, index: Index, order: Order, quarantine: Quarantine | None) -> None:
        self.index, self.order, self.quarantine = index, order, quarantine
        self._plan: BatchOrder = order if quarantine is None else CleanOrder(order, quarantine)
        self._cursor = Cursor()

    def __len__(self) -> int:
        """Returns the number of batches per epoch."""
        return len(self.order)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded."""
        return self.order.state_dict(self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a position that `state_dict` returned. See `Order.restore` for errors."""
        self._cursor = self.order.restore(state)

    def _advance(self, image: paddle.Tensor, label: paddle.Tensor) -> Batch:
        """Builds the batch at the current position, and moves to the next position."""
        step = self._plan.at(self._cursor)
        self._cursor = self._cursor.next(len(self.order))
        return Batch(image, label, step.valid, step.weight, step.update, step.indices)

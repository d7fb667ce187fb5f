"""The part that loaders share: the order of the samples and the position in it."""

from __future__ import annotations

from typing import Any

import paddle

from ppcls.data.bad_images.quarantine import CleanOrder, Quarantine
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.order import BatchOrder, Cursor, Order


class OrderedLoader:
    """Base of loaders that yield the batches of an `Order`.

    Args:
        quarantine: Collects bad images, which are skipped; None if the first one ends the run.
    """

    def __init__(self, index: Index, order: Order, quarantine: Quarantine | None) -> None:
        self.index, self.order, self.quarantine = index, order, quarantine
        self._plan: BatchOrder = order if quarantine is None else CleanOrder(order, quarantine)
        self._cursor = Cursor()

    def __len__(self) -> int:
        """Returns the number of batches of an epoch."""
        return len(self.order)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded."""
        return self.order.state_dict(self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a position that `state_dict` returned; see `Order.restore` for errors."""
        self._cursor = self.order.restore(state)

    def _advance(self, image: paddle.Tensor, label: paddle.Tensor) -> Batch:
        """Returns the batch at the current position, and moves to the next one."""
        step = self._plan.at(self._cursor)
        self._cursor = self._cursor.next(len(self.order))
        return Batch(image, label, step.valid, step.weight, step.update, step.indices)

"""Provides the base class of loaders, which tracks the position in the order of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.data.bad_images.quarantine import CleanOrder, Quarantine
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.order import BatchOrder, Cursor, Order
from ppcls.data.stored.ahead import ReadAhead, StoredIndex
from ppcls.data.transforms.specs import Op, count_draws
from ppcls.data.transforms.specs.decisions import decide, drawn_labels
from ppcls.data.transforms.specs.rng import uniforms

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class DrawnLabels:
    """Computes the labels that a random transform determines, for `CustomLabelDataset`.

    Attributes:
        ops: Chain of transforms.
        position: Position in ``ops`` of the transform that determines the labels.
        seed: Seed of the run.
    """

    ops: Sequence[Op]
    position: int
    seed: int

    def __call__(self, epoch: int, indices: Positions, repeats: Positions) -> Positions:
        """Returns the labels of samples, [B] int64.

        Args:
            epoch: Epoch, from 0.
            indices: [B], positions of the samples in the index.
            repeats: [B], number of earlier occurrences of each sample in the epoch.
        """
        op = self.ops[self.position]
        draws = uniforms(self.seed, epoch, indices, count_draws(self.ops), repeats)
        unknown = np.ones([len(indices), 2], np.int64)  # sizes of images, on which labels do not depend
        return drawn_labels(op.spec, decide(op.spec, draws[:, op.slot : op.slot + op.spec.draws], unknown))


class OrderedLoader:
    """Base class of loaders that yield the batches of an `Order`.

    Args:
        index: The samples.
        order: Order of the samples.
        quarantine: Collects the bad images, which the loader skips; None if the first bad image ends the run.

    Attributes:
        index: The samples, without the cache of decoded images.
    """

    def __init__(self, index: Index, order: Order, quarantine: Quarantine | None) -> None:
        self._encoded = index
        self.index: Index = getattr(index, "original", index)
        self.order = order
        self.quarantine = quarantine
        self._plan: BatchOrder = order if quarantine is None else CleanOrder(order, quarantine)
        self._cursor = Cursor()
        self._downloads = ReadAhead(index, self._plan) if isinstance(index, StoredIndex) else None
        if self._downloads is not None:
            finalize(self, self._downloads.close)
        self.labels: DrawnLabels | None = None  # None if the index has the labels

    def __len__(self) -> int:
        """Returns the number of batches per epoch."""
        return len(self.order)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded."""
        return self.order.state_dict(self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a position that `state_dict` returned. See `Order.restore` for errors."""
        self._cursor = self.order.restore(state)

    def _read_ahead(self) -> None:
        """Downloads the images of the next batches if they are in object storage."""
        if self._downloads is not None:
            self._downloads.move(self._cursor)

    def _advance(self, image: paddle.Tensor, label: paddle.Tensor) -> Batch:
        """Builds the batch at the current position, and moves to the next position."""
        step = self._plan.at(self._cursor)
        if self.labels is not None:
            label = paddle.to_tensor(self.labels(self._cursor.epoch, step.indices, step.repeats))
        self._cursor = self._cursor.next(len(self.order))
        self._read_ahead()
        return Batch(image, label, step.valid, step.weight, step.update, step.indices)

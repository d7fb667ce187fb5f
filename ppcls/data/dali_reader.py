"""Reads encoded images ahead of the pipeline that decodes them, and their shapes from their headers.

A pipeline of its own: DALI runs the CPU operators of one pipeline one after the other, so reading within
the decoding pipeline would take its time away from decoding. And what depends on an image's shape, such as
a random crop's window, is known before decoding begins.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.data.encoded import encoded_images
from ppcls.data.index import Index
from ppcls.data.order import Cursor, Order, Step


@dataclass(frozen=True)
class EncodedBatch:
    """One batch before decoding.

    Attributes:
        cursor: Its position.
        step: Its samples.
        files: [B] encoded images, a DALI tensor list on the CPU.
        sides: [B, 2] int64, heights and widths as the decoder will give them, turned by EXIF.
    """

    cursor: Cursor
    step: Step
    files: Any
    sides: NDArray[np.int64]


class DaliReader:
    """Reads the batches of an order, one after the other, from wherever `seek` put it.

    Args:
        index: The samples.
        order: Which of them when.
        threads: That read.
        ahead: Batches read before they are asked for.
    """

    def __init__(self, index: Index, order: Order, threads: int, ahead: int) -> None:
        self._images, self._order = encoded_images(index, threads), order
        self._next = Cursor()
        self.under_way: deque[tuple[Cursor, Step]] = deque()
        self._pipeline = Pipeline(
            batch_size=order.batch_size,
            num_threads=threads,
            device_id=None,
            prefetch_queue_depth=ahead,
            exec_dynamic=True,
        )
        with self._pipeline:
            files = self._images.node(fn.external_source(self._batch, batch=True))
            self._pipeline.set_outputs(files, fn.peek_image_shape(files))
        self._pipeline.build()

    def seek(self, cursor: Cursor) -> None:
        """Goes on from another position; what is under way still comes first."""
        self._next = cursor

    def read(self) -> EncodedBatch:
        """Returns the next batch.

        Raises:
            RuntimeError: A file can't be read or is not an image; the reader is of no use any more.
        """
        files, shapes = self._pipeline.run()
        cursor, step = self.under_way.popleft()
        return EncodedBatch(cursor, step, files, np.asarray(shapes.as_tensor())[:, :2].copy())

    def _batch(self) -> Any:
        cursor = self._next
        step = self._order.at(cursor)
        self.under_way.append((cursor, step))
        self._next = cursor.next(len(self._order))
        return self._images.batch(step.indices)

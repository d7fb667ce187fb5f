"""Page-locked host memory, from which a GPU copies several times as fast as from normal memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.arch.fused.cuda import copy_to_gpu
from ppcls.runtime.hardware import usable_cores

Array = NDArray[Any]

_MOST_THREADS = 8
_SMALLEST_BYTES = 1 << 20  # below this size, one thread copies a batch


class PinnedBuffer:
    """A buffer in page-locked memory, through which batches are copied to a GPU. It grows when necessary.

    A batch is in the buffer until the next call. The GPU must have received the previous one by then.
    """

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] | None = None
        self._parts = min(_MOST_THREADS, usable_cores())
        self._threads = ThreadPoolExecutor(self._parts)

    def join(self, images: Sequence[Array]) -> Array:
        """Copies images of the same shape and dtype into the buffer, and returns the batch [B, ...] there.

        `fill` and `send` do not copy this batch again on the host.
        """
        batch = self._reserve((len(images), *images[0].shape), images[0].dtype)

        def copy(rows: Sequence[int]) -> None:
            for row in rows:
                np.copyto(batch[row], images[row])

        if batch.nbytes < _SMALLEST_BYTES:
            copy(range(len(images)))
        else:
            list(self._threads.map(copy, np.array_split(range(len(images)), self._parts)))
        return batch

    def fill(self, images: Array) -> Array:
        """Copies a batch into the buffer, and returns it as an array of the same shape and dtype.

        Args:
            images: Contiguous array.
        """
        if self._contains(images):
            return images
        batch = self._reserve(images.shape, images.dtype)
        for _ in self._fill_parts(batch, images):
            pass
        return batch

    def send(self, images: Array) -> Tensor:
        """Copies a batch through the buffer to the GPU. The GPU receives a part while others are copied.

        Args:
            images: Contiguous array.

        Returns:
            The batch, a tensor of the same shape and dtype, which Paddle's stream receives.
        """
        target = paddle.empty(images.shape, str(images.dtype))
        if self._contains(images):
            copy_to_gpu(target, 0, images)
            return target
        begin = 0
        for part in self._fill_parts(self._reserve(images.shape, images.dtype), images):
            copy_to_gpu(target, begin, part)
            begin += part.nbytes
        return target

    def _contains(self, images: Array) -> bool:
        """Returns whether a contiguous array is in the buffer."""
        return (
            self._memory is not None
            and images.flags.c_contiguous
            and np.may_share_memory(images, self._memory)
        )

    def _reserve(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Returns an array in the buffer."""
        size = int(np.prod(shape)) * dtype.itemsize
        if self._memory is None or self._memory.nbytes < size:
            self._memory = allocate(size)
        return self._memory[:size].view(dtype).reshape(shape)

    def _fill_parts(self, batch: Array, images: Array) -> Iterator[Array]:
        """Copies ``images`` to ``batch``, and yields its parts in order, each when it is filled."""
        count = 1 if images.nbytes < _SMALLEST_BYTES else 2 * self._parts
        targets, sources = (np.array_split(array.reshape(-1), count) for array in (batch, images))
        if count == 1:
            np.copyto(targets[0], sources[0])
            yield targets[0]
            return
        copies = [self._threads.submit(np.copyto, *parts) for parts in zip(targets, sources, strict=True)]
        for copy, target in zip(copies, targets, strict=True):
            copy.result()
            yield target


def allocate(size: int) -> NDArray[np.uint8]:
    """Returns page-locked memory of ``size`` bytes, which exists as long as an array uses it."""
    return np.asarray(_Memory(size))


class _Memory:
    """Page-locked memory as an object that NumPy converts to an array and keeps alive."""

    def __init__(self, size: int) -> None:
        self._owner = paddle.to_tensor(np.zeros(size, np.uint8), place=paddle.CUDAPinnedPlace())
        address = (self._owner.data_ptr(), False)  # not read-only
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": address}

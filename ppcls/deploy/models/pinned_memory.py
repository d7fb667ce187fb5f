"""Page-locked host memory, from which a GPU copies several times as fast as from normal memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.arch.fused.cuda import copy_to_gpu

# One thread of an H200's host copies 7 GB/s, and the GPU receives 50 GB/s.
_THREADS = min(8, len(os.sched_getaffinity(0)))
_SMALLEST_BYTES = 1 << 20  # below this size, one thread copies a batch


class PinnedBuffer:
    """A buffer in page-locked memory, through which batches are copied to a GPU. It grows when necessary."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] | None = None
        self._owner: Any = None  # Paddle tensor that owns the memory
        self._threads = ThreadPoolExecutor(_THREADS)

    def fill(self, images: NDArray[Any]) -> NDArray[Any]:
        """Copies a batch into the buffer, and returns it as an array of the same shape and dtype.

        The GPU must have received the previous batch.

        Args:
            images: Contiguous array.
        """
        batch = self._reserve(images)
        for _ in self._fill_parts(batch, images):
            pass
        return batch

    def send(self, images: NDArray[Any]) -> Tensor:
        """Copies a batch through the buffer to the GPU. The GPU receives a part while others are copied.

        The GPU must have received the previous batch. Paddle's stream receives this one.

        Args:
            images: Contiguous array.

        Returns:
            The batch, a tensor of the same shape and dtype.
        """
        batch = self._reserve(images)
        target = paddle.empty(images.shape, str(images.dtype))
        begin = 0
        for part in self._fill_parts(batch, images):
            copy_to_gpu(target, begin, part)
            begin += part.nbytes
        return target

    def _reserve(self, images: NDArray[Any]) -> NDArray[Any]:
        """Returns a part of the buffer with the shape and dtype of a batch."""
        if self._memory is None or self._memory.nbytes < images.nbytes:
            self._owner = paddle.to_tensor(np.zeros(images.nbytes, np.uint8), place=paddle.CUDAPinnedPlace())
            address = self._owner.data_ptr()
            self._memory = np.ctypeslib.as_array((ctypes.c_uint8 * images.nbytes).from_address(address))
        return self._memory[: images.nbytes].view(images.dtype).reshape(images.shape)

    def _fill_parts(self, batch: NDArray[Any], images: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Copies ``images`` to ``batch``, and yields its parts in order, each when it is filled."""
        count = 1 if images.nbytes < _SMALLEST_BYTES else 2 * _THREADS
        targets, sources = (np.array_split(array.reshape(-1), count) for array in (batch, images))
        if count == 1:
            np.copyto(targets[0], sources[0])
            yield targets[0]
            return
        copies = [self._threads.submit(np.copyto, *parts) for parts in zip(targets, sources, strict=True)]
        for copy, target in zip(copies, targets, strict=True):
            copy.result()
            yield target

"""The memory that recorded convolutions work in.

While a CUDA graph is recorded, Paddle takes all memory from a pool of the graph's own, but for the workspace
of cuDNN's convolutions: that comes from the usual pool, and goes back to it as soon as the convolution is
recorded (``GPUContext::GetDnnWorkspace``). Each replay writes there nevertheless, over whatever tensor lies
there by then. So all convolutions are made to find one block, which is nobody else's afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import paddle

from ppcls.errors import UserError

_LEAST = 256  # bytes; the unit of Paddle's allocator


class Memory(Protocol):
    """A pool that lends the smallest free block that is large enough, and grows where there is none."""

    def take(self, size: int) -> object:
        """Returns a block of so many bytes, which is lent as long as it is referred to."""

    def reserved(self) -> int:
        """Returns the bytes that the pool has from the device, lent or free."""

    def shrink(self) -> None:
        """Returns what is wholly free to the device."""


class GpuMemory:
    """Paddle's pool on the present GPU."""

    def take(self, size: int) -> object:
        """Returns a tensor of so many bytes."""
        return paddle.empty([size], "uint8")

    def reserved(self) -> int:
        """Returns the bytes that Paddle has from the GPU."""
        return int(paddle.device.cuda.memory_reserved())

    def shrink(self) -> None:
        """Empties Paddle's cache."""
        paddle.device.cuda.empty_cache()


class Workspace:
    """A block of GPU memory for the convolutions of recorded work, shared by all of a run's graphs.

    Args:
        size: Bytes; the most that a convolution takes. A multiple of 256.
        memory: The pool.
    """

    def __init__(self, size: int, memory: Memory | None = None) -> None:
        self._size, self._memory = size, memory or GpuMemory()
        self._block: object | None = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Has the block be the pool's only free one within the context, and nobody's but ours afterwards.

        Raises:
            UserError: The pool does not work as we think, so the block can't be kept apart.
        """
        memory = self._memory
        block = memory.take(self._size) if self._block is None else self._block
        others = _take_all(memory, self._size)
        memory.shrink()
        before = memory.reserved()
        others.append(memory.take(_LEAST))
        _check(memory.reserved() > before)
        self._block = None
        del block
        yield
        before = memory.reserved()
        self._block = memory.take(self._size)
        _check(memory.reserved() == before)


def _take_all(memory: Memory, largest: int) -> list[object]:
    """Takes all that is free in a pool, from blocks of the ``largest`` size down.

    A block for which the pool grew was not free. It is kept until the end, or it would be found free next.
    """
    taken, grown = [], []
    size = largest
    while size >= _LEAST:
        before = memory.reserved()
        block = memory.take(size)
        if memory.reserved() > before:
            grown.append(block)
            size //= 2
        else:
            taken.append(block)
    return taken


def _check(holds: bool) -> None:
    if not holds:
        raise UserError(
            f"Global.cuda_graph: Paddle {paddle.__version__}'s pool of GPU memory is not as expected, so a "
            "recorded step could overwrite other tensors; set Global.cuda_graph=False"
        )


def conv_workspace() -> Workspace:
    """Returns a workspace of the most that Paddle lets a convolution take."""
    name = "FLAGS_conv_workspace_size_limit"
    return Workspace(int(paddle.get_flags(name)[name]) << 20)

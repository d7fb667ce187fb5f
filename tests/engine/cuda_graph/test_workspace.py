"""No memory that recorded convolutions write to is anybody else's; shown on a model of Paddle's pool."""

from __future__ import annotations

from collections.abc import Callable

import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.engine.cuda_graph.graph import Workspace, build_workspace
from ppcls.errors import UserError

SIZE = 1 << 14
Range = tuple[int, int]


class Block:
    """What a pool lends until it is let go."""

    def __init__(self, place: Range, back: Callable[[Range], None]) -> None:
        self.place, self._back = place, back

    def __del__(self) -> None:
        self._back(self.place)

    def __bool__(self) -> bool:
        raise AssertionError("a tensor of many elements is neither true nor false")


class Pool:
    """The smallest free block that is large enough, else a new chunk of that size; neighbours merge."""

    def __init__(self) -> None:
        self.chunks: list[Range] = []
        self.free: list[Range] = []
        self._end = 0

    def take(self, size: int) -> Block:
        size = -(-size // 256) * 256
        fitting = [each for each in self.free if each[1] - each[0] >= size]
        if fitting:
            start, end = min(fitting, key=lambda each: each[1] - each[0])
            self.free.remove((start, end))
            if end - start > size:
                self.free.append((start + size, end))
        else:
            start, self._end = self._end, self._end + size + 256  # chunks are no neighbours
            self.chunks.append((start, start + size))
        return Block((start, start + size), self._give_back)

    def _give_back(self, place: Range) -> None:
        start, end = place
        chunk = next(each for each in self.chunks if each[0] <= start < each[1])
        for each in list(self.free):
            if each[0] >= chunk[0] and each[1] <= chunk[1] and (each[1] == start or each[0] == end):
                self.free.remove(each)
                start, end = min(start, each[0]), max(end, each[1])
        self.free.append((start, end))

    def reserved(self) -> int:
        return sum(end - start for start, end in self.chunks)

    def shrink(self) -> None:
        for each in [each for each in self.free if each in self.chunks]:
            self.free.remove(each)
            self.chunks.remove(each)


def overlap(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]


sizes = st.lists(st.integers(1, 3 * SIZE), max_size=12)


@given(before=sizes, dropped=st.sets(st.integers(0, 11)), needed=st.lists(st.integers(1, SIZE)), after=sizes)
def test_workspace_of_captured_work_is_never_shared(
    before: list[int], dropped: set[int], needed: list[int], after: list[int]
) -> None:
    pool = Pool()
    tensors = [pool.take(size) for size in before]
    tensors = [each for number, each in enumerate(tensors) if number not in dropped]  # leaves holes
    workspace = Workspace(SIZE, pool)
    for _ in range(2):  # two graphs
        written = []
        with workspace.lent():
            for size in needed:
                scratch = pool.take(size)
                written.append(scratch.place)
                del scratch
        pool.shrink()
        tensors += [pool.take(size) for size in after]
        assert not any(overlap(each.place, place) for each in tensors for place in written)
        unmapped = [place for place in written if not any(overlap(place, chunk) for chunk in pool.chunks)]
        assert unmapped == []


class Spare(Pool):
    """A chunk has room for twice of what it was made for, so all is never taken."""

    def take(self, size: int) -> Block:
        count = len(self.chunks)
        block = super().take(2 * size)
        if len(self.chunks) == count:
            return block
        start, end = block.place
        half = (start + end) // 2
        self.free.append((half, end))
        block.place = (start, half)
        return block


def test_workspace_in_an_unexpected_pool_is_an_error() -> None:
    with (
        pytest.raises(UserError, match="GPU memory pool of Paddle"),
        Workspace(SIZE, Spare()).lent(),
    ):
        pass


def test_workspace_that_is_not_returned_is_an_error() -> None:
    pool, kept = Pool(), []
    with pytest.raises(UserError, match=r"set Global.cuda_graph=False"), Workspace(SIZE, pool).lent():
        kept.append(pool.take(SIZE))


def test_build_workspace_has_the_largest_size_of_a_convolution() -> None:
    if not paddle.is_compiled_with_cuda():
        pytest.skip("a flag of GPUs")
    limit = paddle.get_flags("FLAGS_conv_workspace_size_limit")["FLAGS_conv_workspace_size_limit"]
    assert build_workspace().size == 1 << ((limit << 20) - 1).bit_length()


@pytest.mark.gpu
def test_workspace_on_a_gpu_gets_its_block_back() -> None:
    workspace = build_workspace()
    for _ in range(2):
        with workspace.lent():
            address = paddle.empty([workspace.size // 2], "uint8").data_ptr()
        begin = workspace._block.data_ptr()  # type: ignore[union-attr]
        assert begin <= address < begin + workspace.size

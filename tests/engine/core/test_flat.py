from __future__ import annotations

import numpy as np
import paddle
from hypothesis import given
from hypothesis import strategies as st

from ppcls.engine.core.flat_buffers import Flat

SHAPES = st.lists(
    st.tuples(st.lists(st.integers(1, 40), max_size=3), st.sampled_from(["float32", "float64", "int64"])),
    min_size=1,
    max_size=8,
)


def made(shapes: list[tuple[list[int], str]]) -> list[paddle.Tensor]:
    rng = np.random.default_rng(3)
    return [paddle.to_tensor(rng.integers(1, 99, shape).astype(kind)) for shape, kind in shapes]


@given(SHAPES, st.integers(1, 2))
def test_tensors_move_in_with_their_values(shapes: list[tuple[list[int], str]], rows: int) -> None:
    tensors = made(shapes)
    before = [tensor.numpy() for tensor in tensors]
    flat = Flat(tensors, rows)
    assert all(not view.numpy().any() for view in flat.views)
    flat.move_in()
    for tensor, view, array in zip(tensors, flat.views, before, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype
        view.add_(paddle.ones_like(view))
        np.testing.assert_array_equal(tensor.numpy(), array + 1)
    for memory, buffer in zip(flat.memories, flat.buffers, strict=True):
        assert memory.shape[0] == rows
        words = memory[0].numpy()
        np.testing.assert_array_equal(words.view(buffer.numpy().dtype), buffer.numpy())
    assert sum(float(buffer.sum()) for buffer in flat.buffers) == sum(
        float((each + 1).sum()) for each in before
    )


@given(SHAPES, SHAPES)
def test_a_window_is_what_lies_between(
    before: list[tuple[list[int], str]], shapes: list[tuple[list[int], str]]
) -> None:
    """The same window of two layouts has the same places in it, whatever the dtype."""
    tensors = made(before)
    same = [(shape, "float32") for shape, _ in shapes]
    flat, other = Flat(tensors + made(same)), Flat(made([(shape, "float64") for shape, _ in shapes]))
    first, last = len(before), len(before) + len(shapes) - 1
    window, twin = flat.window(first, last), other.window(0, len(shapes) - 1)
    window.fill_(7)
    twin.fill_(7)
    assert window.shape == twin.shape
    for view, like in zip(flat.views[first:], other.views, strict=True):
        np.testing.assert_array_equal(view.numpy(), like.numpy())
        assert (view.numpy() == 7).all()
    assert all(not view.numpy().any() for view in flat.views[:first])


@given(SHAPES)
def test_what_is_taken_is_a_copy(shapes: list[tuple[list[int], str]]) -> None:
    tensors = made(shapes)
    flat, sums = Flat(tensors), Flat(tensors)
    flat.take(tensors)
    sums.copy(flat)
    sums.add(flat)
    for tensor, view, twice in zip(tensors, flat.views, sums.views, strict=True):
        np.testing.assert_array_equal(view.numpy(), tensor.numpy())
        np.testing.assert_array_equal(twice.numpy(), 2 * tensor.numpy())

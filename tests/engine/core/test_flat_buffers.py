from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.engine.core.flat_buffers import FlatBuffers, UpdateSnapshot

SHAPES = st.lists(
    st.tuples(st.lists(st.integers(1, 40), max_size=3), st.sampled_from(["float32", "float64", "int64"])),
    min_size=1,
    max_size=8,
)


def made(shapes: list[tuple[list[int], str]]) -> list[paddle.Tensor]:
    rng = np.random.default_rng(3)
    return [paddle.to_tensor(rng.integers(1, 99, shape).astype(kind)) for shape, kind in shapes]


@given(SHAPES, st.integers(1, 2))
def test_flat_buffers_adopt_keeps_values_and_objects(shapes: list[tuple[list[int], str]], rows: int) -> None:
    tensors = made(shapes)
    before = [tensor.numpy() for tensor in tensors]
    flat = FlatBuffers(tensors, rows)
    assert all(not view.numpy().any() for view in flat.views)
    flat.adopt()
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
def test_flat_buffers_window_spans_neighbouring_tensors(
    before: list[tuple[list[int], str]], shapes: list[tuple[list[int], str]]
) -> None:
    """The same window of two layouts has the same places in it, whatever the dtype."""
    tensors = made(before)
    same = [(shape, "float32") for shape, _ in shapes]
    flat, other = (
        FlatBuffers(tensors + made(same)),
        FlatBuffers(made([(shape, "float64") for shape, _ in shapes])),
    )
    first, last = len(before), len(before) + len(shapes) - 1
    window, twin = flat.window(first, last), other.window(0, len(shapes) - 1)
    window.fill_(7)
    twin.fill_(7)
    assert window.shape == twin.shape
    for view, like in zip(flat.views[first:], other.views, strict=True):
        np.testing.assert_array_equal(view.numpy(), like.numpy())
        assert (view.numpy() == 7).all()
    assert all(not view.numpy().any() for view in flat.views[:first])


@given(SHAPES, SHAPES)
def test_flat_buffers_cast_copies_a_range_of_tensors(
    before: list[tuple[list[int], str]], shapes: list[tuple[list[int], str]]
) -> None:
    tensors = made(before) + made([(shape, "float32") for shape, _ in shapes])
    flat = FlatBuffers(tensors)
    flat.adopt()
    copies = flat.cast(len(before), len(tensors) - 1, "float64")
    for copy, tensor in zip(copies, tensors[len(before) :], strict=True):
        assert copy.dtype == paddle.float64
        assert copy.shape == tensor.shape
        assert (copy.data_ptr() - copies[0].data_ptr()) % 256 == 0
        np.testing.assert_array_equal(copy.numpy(), tensor.numpy())


@given(SHAPES, st.integers(0, 6))
def test_flat_buffers_fill_copies_a_range(shapes: list[tuple[list[int], str]], first: int) -> None:
    tensors = made(shapes)
    first = min(first, len(tensors))
    flat = FlatBuffers(tensors)
    flat.fill(tensors[first:], first)
    for tensor, view in zip(tensors[first:], flat.views[first:], strict=True):
        np.testing.assert_array_equal(view.numpy(), tensor.numpy())
    assert all(not view.numpy().any() for view in flat.views[:first])
    flat.fill(tensors[:first])
    for tensor, view in zip(tensors, flat.views, strict=True):
        np.testing.assert_array_equal(view.numpy(), tensor.numpy())
    elements = sum(tensor.numpy().astype("float64").sum() for tensor in tensors)
    assert sum(buffer.numpy().astype("float64").sum() for buffer in flat.buffers) == pytest.approx(elements)


RNG = np.random.default_rng(5)
MIXED_SHAPES = [[3, 5], [1], [64], [2, 3, 4, 5]]


def tensors(device: str = "cpu") -> list[paddle.Tensor]:
    kinds = ["float32", "float64"] if device == "cpu" else ["float32", "float16"]
    return [
        paddle.to_tensor(RNG.normal(size=shape).astype(kind), place=device)
        for kind in kinds
        for shape in MIXED_SHAPES
    ]


def hold_that_values_come_back(each: list[paddle.Tensor], back: bool) -> None:
    before, ids = [tensor.numpy() for tensor in each], [id(tensor) for tensor in each]
    snapshot = UpdateSnapshot(each)
    assert [tensor.shape for tensor in each] == [list(array.shape) for array in before]
    for tensor, array in zip(each, before, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    snapshot.save()
    for tensor in each:
        tensor.copy_(tensor * float("nan"), True)
    snapshot.restore_if(paddle.to_tensor([back]))
    assert ids == [id(tensor) for tensor in each]
    for tensor, array in zip(each, before, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array if back else np.full_like(array, np.nan))


@pytest.mark.parametrize("back", [True, False])
def test_update_snapshot_restores_only_if_the_condition_holds(back: bool) -> None:
    hold_that_values_come_back(tensors(), back)


@pytest.mark.gpu
@pytest.mark.parametrize("back", [True, False])
def test_update_snapshot_on_a_gpu_restores_only_if_the_condition_holds(back: bool) -> None:
    hold_that_values_come_back([*tensors("gpu"), *tensors("cpu")[: len(MIXED_SHAPES)]], back)


def test_update_snapshot_tensors_stay_aligned() -> None:
    each = tensors()
    UpdateSnapshot(each)
    assert all(tensor.data_ptr() % 64 == each[0].data_ptr() % 64 for tensor in each)


def test_update_snapshot_restores_the_last_saved_values() -> None:
    (tensor,) = each = [paddle.zeros([4])]
    snapshot = UpdateSnapshot(each)
    for value in (1.0, 2.0):
        tensor.fill_(value)
        snapshot.save()
    tensor.fill_(3.0)
    snapshot.restore_if(paddle.to_tensor([True]))
    np.testing.assert_array_equal(tensor.numpy(), 2.0)


def test_update_snapshot_of_no_tensors_does_nothing() -> None:
    snapshot = UpdateSnapshot([])
    snapshot.save()
    snapshot.restore_if(paddle.to_tensor([True]))

from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.engine.core.flat_buffers import Undo

RNG = np.random.default_rng(5)
SHAPES = [[3, 5], [1], [64], [2, 3, 4, 5]]


def tensors(device: str = "cpu") -> list[paddle.Tensor]:
    kinds = ["float32", "float64"] if device == "cpu" else ["float32", "float16"]
    return [
        paddle.to_tensor(RNG.normal(size=shape).astype(kind), place=device)
        for kind in kinds
        for shape in SHAPES
    ]


def hold_that_values_come_back(each: list[paddle.Tensor], back: bool) -> None:
    before, ids = [tensor.numpy() for tensor in each], [id(tensor) for tensor in each]
    undo = Undo(each)
    assert [tensor.shape for tensor in each] == [list(array.shape) for array in before]
    for tensor, array in zip(each, before, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    undo.keep()
    for tensor in each:
        tensor.copy_(tensor * float("nan"), True)
    undo.back_if(paddle.to_tensor([back]))
    assert ids == [id(tensor) for tensor in each]
    for tensor, array in zip(each, before, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array if back else np.full_like(array, np.nan))


@pytest.mark.parametrize("back", [True, False])
def test_values_come_back_where_the_condition_holds(back: bool) -> None:
    hold_that_values_come_back(tensors(), back)


@pytest.mark.gpu
@pytest.mark.parametrize("back", [True, False])
def test_values_come_back_on_a_gpu_also_those_of_the_cpu(back: bool) -> None:
    hold_that_values_come_back([*tensors("gpu"), *tensors("cpu")[: len(SHAPES)]], back)


def test_each_tensor_begins_where_kernels_expect_it() -> None:
    each = tensors()
    Undo(each)
    assert all(tensor.data_ptr() % 64 == each[0].data_ptr() % 64 for tensor in each)


def test_kept_is_what_was_at_the_last_keep() -> None:
    (tensor,) = each = [paddle.zeros([4])]
    undo = Undo(each)
    for value in (1.0, 2.0):
        tensor.fill_(value)
        undo.keep()
    tensor.fill_(3.0)
    undo.back_if(paddle.to_tensor([True]))
    np.testing.assert_array_equal(tensor.numpy(), 2.0)


def test_nothing_to_keep_is_no_error() -> None:
    undo = Undo([])
    undo.keep()
    undo.back_if(paddle.to_tensor([True]))

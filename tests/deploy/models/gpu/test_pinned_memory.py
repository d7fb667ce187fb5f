"""Batches in page-locked memory. Without a GPU, normal memory replaces it and that of the GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import paddle
import pytest

from ppcls.deploy.models.gpu import pinned_memory
from ppcls.deploy.models.gpu.pinned_memory import PinnedBuffer
from ppcls.deploy.predictor import JoiningModel, join

SHAPES = ((2, 3), (4, 300, 300, 3), (1, 5), (7, 300, 301, 3))
Array = np.ndarray[Any, Any]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the parts that were copied to the GPU; empty on a GPU."""
    sizes: list[int] = []
    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        return sizes

    def copy(target: paddle.Tensor, begin: int, source: Array) -> None:
        sizes.append(source.nbytes)
        ctypes.memmove(target.data_ptr() + begin, source.ctypes.data, source.nbytes)

    monkeypatch.setattr(pinned_memory, "copy_to_gpu", copy)
    monkeypatch.setattr(pinned_memory, "allocate", lambda size: np.zeros(size, np.uint8))
    return sizes


def batches() -> list[Array]:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, shape, np.uint8) for shape in SHAPES]
    return [batch for image in images for batch in (image, image.astype(np.float32))]


@pytest.mark.parametrize("where", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_batches_of_any_size_are_copied(where: str, parts: list[int]) -> None:
    buffer = PinnedBuffer()
    for batch in batches():
        np.testing.assert_array_equal(buffer.fill(batch), batch)
        sent = buffer.send(batch)
        assert str(sent.dtype).endswith(str(batch.dtype))
        np.testing.assert_array_equal(sent.numpy(), batch)
        joined = buffer.join(list(batch))
        assert joined.dtype == batch.dtype
        np.testing.assert_array_equal(joined, batch)
        np.testing.assert_array_equal(buffer.send(joined).numpy(), batch)
    assert where == "gpu" or max(np.bincount(parts)) > 2, "large batches have several parts"


def test_joined_batch_is_not_copied_again(parts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = PinnedBuffer()
    batch = batches()[2]
    joined = buffer.join(list(batch))
    monkeypatch.setattr(buffer, "_fill_parts", lambda *_: pytest.fail("copied on the host"))
    np.testing.assert_array_equal(buffer.send(joined).numpy(), batch)
    assert buffer.fill(joined) is joined
    assert parts in ([], [batch.nbytes])


@pytest.mark.parametrize("where", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.usefixtures("parts")
def test_batch_stays_readable_while_the_buffer_grows(where: str) -> None:
    buffer = PinnedBuffer()
    small, large = batches()[2], batches()[6]
    joined = buffer.join(list(small))
    buffer.fill(large)
    np.testing.assert_array_equal(joined, small)
    np.testing.assert_array_equal(buffer.send(joined).numpy(), small)


class _PlainModel:
    engine = "none"

    def run(self, images: Any) -> Array:
        return np.zeros((len(images), 1))


class _PinnedModel(_PlainModel):
    def __init__(self) -> None:
        self.join = PinnedBuffer().join


@pytest.mark.parametrize("model", [_PlainModel, _PinnedModel])
@pytest.mark.usefixtures("parts")
def test_predictor_joins_images_as_its_model_does(model: type[_PlainModel]) -> None:
    batch = batches()[0]
    built = model()
    assert isinstance(built, JoiningModel) == (model is _PinnedModel)
    np.testing.assert_array_equal(join(list(batch), built), batch)

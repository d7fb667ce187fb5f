"""Batches in page-locked memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import paddle
import pytest

from ppcls.deploy.models import pinned_memory
from ppcls.deploy.models.pinned_memory import PinnedBuffer

SHAPES = ((2, 3), (4, 300, 300, 3), (1, 5), (7, 300, 301, 3))


@pytest.mark.gpu
def test_pinned_buffer_holds_batches_of_any_size() -> None:
    random, buffer = np.random.default_rng(0), PinnedBuffer()
    for shape in SHAPES:
        images = random.integers(0, 256, shape, np.uint8)
        np.testing.assert_array_equal(buffer.fill(images), images)
        floats = images.astype(np.float32)
        np.testing.assert_array_equal(buffer.fill(floats), floats)


@pytest.mark.gpu
def test_gpu_receives_batches_of_any_size() -> None:
    check_sent_batches(PinnedBuffer())


def test_parts_of_a_batch_form_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With normal memory instead of page-locked memory and that of a GPU."""
    parts: list[int] = []

    def copy(target: paddle.Tensor, begin: int, source: np.ndarray[Any, Any]) -> None:
        parts.append(source.nbytes)
        ctypes.memmove(target.data_ptr() + begin, source.ctypes.data, source.nbytes)

    monkeypatch.setattr(pinned_memory, "copy_to_gpu", copy)
    buffer = PinnedBuffer()
    monkeypatch.setattr(buffer, "_reserve", np.zeros_like)
    check_sent_batches(buffer)
    assert len(parts) > len(SHAPES) * 2, "large batches have several parts"


def check_sent_batches(buffer: PinnedBuffer) -> None:
    random = np.random.default_rng(0)
    for shape in SHAPES:
        images = random.integers(0, 256, shape, np.uint8)
        for batch in (images, images.astype(np.float32)):
            sent = buffer.send(batch)
            assert str(sent.dtype).endswith(str(batch.dtype))
            np.testing.assert_array_equal(sent.numpy(), batch)

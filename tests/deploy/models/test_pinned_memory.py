"""Batches in page-locked memory."""

from __future__ import annotations

import numpy as np
import pytest

from ppcls.deploy.models.pinned_memory import PinnedBuffer


@pytest.mark.gpu
def test_pinned_buffer_holds_batches_of_any_size() -> None:
    random, buffer = np.random.default_rng(0), PinnedBuffer()
    for shape in ((2, 3), (4, 300, 300, 3), (1, 5), (7, 300, 300, 3)):
        images = random.integers(0, 256, shape, np.uint8)
        np.testing.assert_array_equal(buffer.fill(images), images)
        floats = images.astype(np.float32)
        np.testing.assert_array_equal(buffer.fill(floats), floats)

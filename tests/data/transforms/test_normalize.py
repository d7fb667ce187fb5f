from __future__ import annotations

import numpy as np
import pytest

from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs import NormalizeImage


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("single", [True, False])
def test_normalized_bytes_equal_the_formula_bit_for_bit(channels: int, single: bool) -> None:
    random = np.random.default_rng(channels)
    image = random.integers(0, 256, (7, 9, channels), np.uint8)[1:, 2:]
    count = 1 if single else channels
    mean, std = random.uniform(0.2, 0.7, (2, count)).tolist()
    spec = NormalizeImage(mean=tuple(mean), std=tuple(std), order="")
    pixels = apply(spec, image, ())
    expected = (image.astype(np.float32) * np.float32(1 / 255) - np.float32(mean)) / np.float32(std)
    assert pixels.dtype == np.float32
    np.testing.assert_array_equal(pixels, expected)

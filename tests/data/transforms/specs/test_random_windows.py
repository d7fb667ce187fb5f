"""The random crop's window against the published formula in plain Python."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ppcls.data.transforms.specs import RandCropImage
from ppcls.data.transforms.specs.basic import random_windows
from ppcls.data.transforms.specs.rng import uniforms

Array = NDArray[np.float64]


class CropWindow(NamedTuple):
    top: int
    left: int
    height: int
    width: int


LAST = 1 - 2**-24  # the largest draw

SIDES = st.integers(1, 6000)
DRAWS = st.integers(0, 2**24 - 1).map(lambda whole: whole / 2**24) | st.sampled_from([0.0, 0.5, LAST])
SHARES = st.floats(0, 1) | st.sampled_from([0.08, 1.0])
RATIOS = st.floats(0.01, 100) | st.sampled_from([0.75, 1.0, 4 / 3])


@st.composite
def specs(draw: st.DrawFn) -> RandCropImage:
    scale = sorted([draw(SHARES), draw(SHARES.filter(bool))])
    ratio = sorted([draw(RATIOS), draw(RATIOS)])
    return RandCropImage(size=(8, 8), scale=tuple(scale), ratio=tuple(ratio))


def window(spec: RandCropImage, height: int, width: int, draws: list[float]) -> CropWindow:
    found = random_windows(spec, np.array([[height, width]]), np.array([draws], np.float32))
    assert found.shape == (1, 4)
    assert found.dtype == np.int32
    return CropWindow(*found[0].tolist())


def reference(spec: RandCropImage, height: int, width: int, draws: list[float]) -> tuple[float, float]:
    """PaddleClas's RandCropImage in double precision, before whole pixels: (height, width)."""
    low, high = spec.ratio
    aspect = math.sqrt(low + (high - low) * draws[0])
    bound = min((width / height) / aspect**2, (height / width) * aspect**2)
    most, least = min(spec.scale[1], bound), min(spec.scale[0], bound)
    side = math.sqrt(width * height * (least + (most - least) * draws[1]))
    return side / aspect, side * aspect


@given(specs(), SIDES, SIDES, st.lists(DRAWS, min_size=4, max_size=4))
def test_window_is_inside_image_and_not_empty(
    spec: RandCropImage, height: int, width: int, draws: list[float]
) -> None:
    found = window(spec, height, width, draws)
    assert found.height >= 1
    assert found.width >= 1
    assert found.top >= 0
    assert found.left >= 0
    assert found.top + found.height <= height
    assert found.left + found.width <= width


@given(specs(), SIDES, SIDES, st.lists(DRAWS, min_size=4, max_size=4))
def test_window_matches_formula(spec: RandCropImage, height: int, width: int, draws: list[float]) -> None:
    found = window(spec, height, width, draws)
    exact = reference(spec, height, width, draws)
    for side, expected, limit in zip((found.height, found.width), exact, (height, width), strict=True):
        # the two may round across a whole number
        assert min(limit, max(1, math.floor(expected * (1 - 1e-9)))) <= side
        assert side <= min(limit, max(1, math.floor(expected * (1 + 1e-9))))


@pytest.mark.parametrize(("draw", "at_end"), [(0.0, False), (LAST, True)])
def test_windows_of_extreme_draws_reach_both_edges(draw: float, at_end: bool) -> None:
    spec = RandCropImage(size=(8, 8), scale=(0.25, 0.25), ratio=(1.0, 1.0))
    assert window(spec, 100, 200, [0.5, 0.5, draw, draw]) == (
        CropWindow(30, 130, 70, 70) if at_end else CropWindow(0, 0, 70, 70)
    )


@given(specs(), st.lists(st.tuples(SIDES, SIDES, *[DRAWS] * 4), min_size=1, max_size=9))
def test_windows_of_a_batch_equal_those_of_its_images(
    spec: RandCropImage, rows: list[tuple[float, ...]]
) -> None:
    table = np.array(rows)
    whole = random_windows(spec, table[:, :2].astype(np.int64), table[:, 2:])
    for row, found in zip(table, whole, strict=True):
        one = random_windows(spec, row[None, :2].astype(np.int64), row[None, 2:])
        np.testing.assert_array_equal(one[0], found)


def test_window_of_scale_1_and_matching_ratio_is_the_whole_image() -> None:
    spec = RandCropImage(size=(8, 8), scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert window(spec, 64, 64, [LAST] * 4) == CropWindow(0, 0, 64, 64)


def paddleclas(spec: RandCropImage, height: int, width: int, rng: random.Random) -> CropWindow:
    """PaddleClas's own code path, random numbers included."""
    aspect = math.sqrt(rng.uniform(*spec.ratio))
    w, h = 1.0 * aspect, 1.0 / aspect
    bound = min((width / height) / w**2, (height / width) / h**2)
    scale_max, scale_min = min(spec.scale[1], bound), min(spec.scale[0], bound)
    target_size = math.sqrt(width * height * rng.uniform(scale_min, scale_max))
    w, h = int(target_size * w), int(target_size * h)
    return CropWindow(rng.randint(0, height - h), rng.randint(0, width - w), h, w)


def distance(one: Array, two: Array) -> float:
    """The largest difference of two samples' distribution functions (Kolmogorov and Smirnov's)."""
    values = np.union1d(one, two)
    shares = [np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (one, two)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (300, 600)])
def test_window_distribution_equals_paddleclas(height: int, width: int) -> None:
    spec, rng, count = RandCropImage(size=(224, 224)), random.Random(0), 20_000
    draws = uniforms(0, 0, np.arange(count), 4)
    ours = random_windows(spec, np.array([[height, width]] * count), draws).T.astype(np.float64)
    theirs = np.array([paddleclas(spec, height, width, rng) for _ in range(count)]).T
    for of in (
        lambda top, left, h, w: h * w / (height * width),
        lambda top, left, h, w: w / h,
        lambda top, left, h, w: top / np.maximum(1, height - h),
        lambda top, left, h, w: left / np.maximum(1, width - w),
    ):
        assert distance(of(*ours), of(*theirs)) < 0.02


def test_window_position_is_uniform() -> None:
    spec = RandCropImage(size=(8, 8), scale=(0.25, 0.25), ratio=(1.0, 1.0))  # 5 of 10 pixels, six places
    draws = uniforms(1, 0, np.arange(60_000), 4)
    top, left, *_ = random_windows(spec, np.full((60_000, 2), 10), draws).T
    for start in (top, left):
        counts = np.bincount(start.astype(int), minlength=6)
        assert len(counts) == 6
        assert ((counts - 10_000) ** 2 / 10_000).sum() < 25  # chi squared, 5 degrees of freedom


def test_logarithm_of_the_aspect_ratio_is_uniform() -> None:
    spec = RandCropImage(size=(8, 8), ratio=(0.5, 2.0), scale=(0.2, 0.2), use_log_aspect=True)
    for share, aspect in ((0.0, 0.5), (0.5, 1.0), (LAST, 2.0)):
        found = window(spec, 4000, 4000, [share, 0.5, 0.5, 0.5])
        assert math.isclose(found.width / found.height, aspect, rel_tol=0.01)

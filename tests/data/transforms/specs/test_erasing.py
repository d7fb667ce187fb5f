"""Erasing against plain formulas, and the distribution of its decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from ppcls.data.transforms.base import ImageState, Transform, check_chain
from ppcls.data.transforms.numpy_ops import apply, decide_and_apply
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, ToCHWImage
from ppcls.data.transforms.specs.decisions import decide
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, HideAndSeek, RandomErasing, noise_bank
from ppcls.data.transforms.specs.rng import uniforms

MANY = 20_000
IMAGE = np.random.default_rng(1).integers(1, 256, [40, 50, 3]).astype(np.uint8)
FLOATS = IMAGE.astype(np.float32) / 60 - 2


def decided(
    spec: Transform, height: int = 200, width: int = 200, count: int = MANY
) -> tuple[NDArray[Any], ...]:
    draws = uniforms(3, 0, np.arange(count), spec.draws)
    return decide(spec, draws, np.full([count, 2], (height, width)))


def drawn(spec: Transform, index: int) -> NDArray[np.float32]:
    return uniforms(3, 0, np.array([index]), spec.draws)[0]


@pytest.mark.parametrize(
    ("cls", "fields", "text"),
    [
        (RandomErasing, {"sl": 0.5}, "expected sl <= sh, got 0.5 and 0.4"),
        (RandomErasing, {"r1": 1.5}, "expected r1 <= 1, got 1.5"),
        (RandomErasing, {"mode": "noise"}, "expected 'const', 'rand' or 'pixel', got 'noise'"),
        (RandomErasing, {"mean": []}, "expected a number, or one per channel, got []"),
        (Cutout, {"n_holes": 0}, "expected an integer > 0, got 0"),
        (GridMask, {"d1": 50, "d2": 50}, "expected d1 < d2, got 50 and 50"),
        (GridMask, {"mode": 2}, "expected 0 or 1, got 2"),
        (HideAndSeek, {"grid_sizes": []}, "expected at least 1 item(s), got []"),
        (HideAndSeek, {"grid_sizes": [-16]}, "expected an integer >= 0, got -16"),
    ],
)
def test_wrong_field_is_rejected(cls: type[Transform], fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        cls.model_validate(fields)
    assert [each["msg"].removeprefix("Value error, ") for each in caught.value.errors()] == [text]


def test_paddleclas_fields_are_read() -> None:
    written = {"EPSILON": 0.25, "sl": 0.02, "sh": "1.0/3.0", "r1": 0.3, "attempt": 10, "use_log_aspect": True}
    spec = RandomErasing.model_validate({**written, "mode": "pixel", "mean": [0.0, 0.0, 0.0]})
    assert (spec.EPSILON, spec.sh, spec.mean) == (0.25, 1 / 3, (0, 0, 0))


@pytest.mark.parametrize("erase", [RandomErasing(), Cutout(length=8), GridMask(d1=4, d2=9)])
def test_erasing_may_come_anywhere_after_decoder(erase: Transform) -> None:
    decode, resize, normalize = DecodeImage(), ResizeImage(size=(32, 32)), NormalizeImage()
    for chain in (
        [decode, erase, resize, normalize],
        [decode, resize, normalize, erase],
        [decode, resize, normalize, erase, ToCHWImage()],
        [decode, resize, normalize, ToCHWImage(), erase],
    ):
        assert check_chain(chain).size == (32, 32)
    with pytest.raises(ValueError, match="expected a decoded image"):
        erase.after(ImageState())


@pytest.mark.parametrize(
    ("spec", "known", "text"),
    [
        (RandomErasing(mean=(0.5,)), {}, r"expected integers from 0 to 255 in mean, got \[0.5\]"),
        (RandomErasing(mean=(1, 2)), {}, "expected 1 or 3 values in mean, got 2"),
        (
            RandomErasing(mode="rand"),
            {"dtype": "float32"},
            "mode rand needs normalized images; put this transform after NormalizeImage",
        ),
        (
            RandomErasing(mode="pixel"),
            {"dtype": "float32", "normalized": True, "channels": 4},
            "mode pixel needs 3 channels, but the image has 4",
        ),
        (Cutout(fill_value=(-1,)), {}, r"expected integers from 0 to 255 in fill_value, got \[-1.0\]"),
        (GridMask(), {"dtype": "float16"}, "expected an 8-bit or float32 image, got float16"),
        (
            HideAndSeek(),
            {},
            "expected images of a fixed size; put this transform after the one that sets the size",
        ),
        (
            HideAndSeek(),
            {"size": (224, 641)},
            "expected at most 40 patches per row, got 41; increase the smallest of grid_sizes",
        ),
    ],
)
def test_unsuitable_image_is_rejected(spec: Transform, known: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        spec.after(ImageState(encoded=False, **known))


@pytest.mark.parametrize("log", [False, True])
def test_rectangle_distribution(log: bool) -> None:
    start, size = decided(RandomErasing(EPSILON=0.4, sl=0.05, sh=0.2, use_log_aspect=log))
    there = size.prod(axis=1) > 0
    assert abs(there.mean() - 0.4) < 0.015
    start, size = start[there], size[there]
    counts, _ = np.histogram(size.prod(axis=1) / 200**2, bins=5, range=(0.05, 0.2))
    np.testing.assert_allclose(counts / there.sum(), 0.2, atol=0.025)
    aspect = size[:, 0] / size[:, 1]  # all aspects fit, because the area is at most a fifth of a square
    assert 0.29 < aspect.min() < 0.31
    assert 1 / 0.31 < aspect.max() < 1 / 0.29
    limits = np.geomspace(0.3, 1 / 0.3, 5) if log else np.linspace(0.3, 1 / 0.3, 5)
    counts, _ = np.histogram(aspect, bins=limits)
    np.testing.assert_allclose(counts / there.sum(), 0.25, atol=0.025)
    place = start / (200 - size + 1)
    assert abs(np.corrcoef(place, rowvar=False)[0, 1]) < 0.05
    for axis in (0, 1):
        counts, _ = np.histogram(place[:, axis], bins=4, range=(0, 1))
        np.testing.assert_allclose(counts / there.sum(), 0.25, atol=0.03)


SIDE = st.integers(1, 300)


@given(SIDE, SIDE, st.floats(0, 1), st.floats(0, 1), st.floats(0.05, 1), st.booleans())
def test_rectangle_fits_and_has_requested_area(
    height: int, width: int, one: float, two: float, r1: float, log: bool
) -> None:
    spec = RandomErasing(EPSILON=1, sl=min(one, two), sh=max(one, two), r1=r1, use_log_aspect=log)
    start, size = decided(spec, height, width, count=50)
    assert (start >= 0).all()
    assert (size >= 1).all()
    assert (start + size <= (height, width)).all()
    if r1 <= min(height / width, width / height):  # then a rectangle of any area fits
        area = size.prod(axis=1)
        slack = size.sum(axis=1) / 2 + 1  # rounded to whole pixels
        assert (area >= spec.sl * height * width - slack).all()
        assert (area <= spec.sh * height * width + slack).all()


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_only_rectangle_changes(mode: Any) -> None:
    spec = RandomErasing(EPSILON=0.7, mode=mode, mean=(0.1, 0.2, 0.3))
    for index in range(30):
        (start, size, *more) = (
            each[0] for each in decide(spec, drawn(spec, index)[None], np.array([[40, 50]]))
        )
        erased = decide_and_apply(spec, FLOATS, drawn(spec, index))
        assert erased.dtype == np.float32
        inside = np.zeros([40, 50], bool)
        inside[int(start[0]) : int(start[0] + size[0]), int(start[1]) : int(start[1] + size[1])] = True
        assert (erased[~inside] == FLOATS[~inside]).all()
        if mode == "const":
            assert (erased[inside] == np.float32([0.1, 0.2, 0.3])).all()
        elif mode == "rand":
            assert (erased[inside] == more[0]).all()
        else:
            assert len(np.unique(erased[inside])) >= 0.99 * erased[inside].size


def test_image_without_rectangle_is_unchanged() -> None:
    for spec in (RandomErasing(EPSILON=0), RandomErasing(EPSILON=0, mode="pixel")):
        assert (decide_and_apply(spec, FLOATS, drawn(spec, 0)) == FLOATS).all()


def test_erasing_before_or_after_normalizing_is_equal() -> None:
    normalize = NormalizeImage()
    grey = (124, 116, 104)
    mean = tuple(((np.array(grey) / 255 - normalize.mean) / normalize.std).tolist())
    before, after = RandomErasing(EPSILON=1, mean=grey), RandomErasing(EPSILON=1, mean=mean)
    for index in range(10):
        one = apply(normalize, decide_and_apply(before, IMAGE, drawn(before, index)), ())
        two = decide_and_apply(after, apply(normalize, IMAGE, ()), drawn(after, index))
        np.testing.assert_allclose(one, two, atol=1e-6)


def test_random_colours_are_normal() -> None:
    *_, colour = decided(RandomErasing(mode="rand"))
    assert colour.shape == (MANY, 3)
    assert np.abs(colour.mean(axis=0)).max() < 0.03
    np.testing.assert_allclose(np.cov(colour.T), np.eye(3), atol=0.04)


def test_noise_is_normal_and_independent_between_pixels() -> None:
    bank = noise_bank()
    assert (bank.shape, bank.dtype) == ((512, 512, 3), np.float32)
    assert abs(bank.mean()) < 0.005
    assert abs(bank.std() - 1) < 0.005
    assert abs((bank**4).mean() - 3) < 0.05
    for neighbour in (np.roll(bank, 1, 0), np.roll(bank, 1, 1), np.roll(bank, 1, 2)):
        assert abs((bank * neighbour).mean()) < 0.005
    _, _, begin, _ = decided(RandomErasing(mode="pixel"))
    assert begin.dtype == np.int32
    assert begin.min() == 0
    assert begin.max() == 511
    assert len(np.unique(begin, axis=0)) > 0.9 * MANY, "few images have the same noise"


def test_noise_wraps_for_image_larger_than_bank() -> None:
    large = np.zeros([700, 600, 3], np.float32)
    spec = RandomErasing(mode="pixel")
    rectangle = np.float32([0, 0]), np.float32([700, 600])
    noise = apply(spec, large, (*rectangle, np.int32([500, 3])))
    assert (noise[0, 0] == noise_bank()[500, 3]).all()
    assert (noise[12:524, 509:] == noise_bank()[:, :91]).all()


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 4), st.integers(1, 70), st.integers(0, 1000))
def test_holes_match_pixel_formula(height: int, width: int, holes: int, length: int, index: int) -> None:
    spec = Cutout(n_holes=holes, length=length, fill_value=(7, 8))
    image = np.zeros([height, width, 2], np.uint8)
    draws = drawn(spec, index).astype(float)
    expected = image.copy()
    for k in range(holes):
        y, x = int(draws[2 * k] * height), int(draws[2 * k + 1] * width)
        for row in range(max(y - length // 2, 0), min(y + length // 2, height)):
            for column in range(max(x - length // 2, 0), min(x + length // 2, width)):
                expected[row, column] = (7, 8)
    assert (decide_and_apply(spec, image, drawn(spec, index)) == expected).all()


def test_hole_centres_are_uniform() -> None:
    start, size = decided(Cutout(length=2), height=5, width=4)
    counts = np.zeros([6, 5])
    np.add.at(counts, tuple((start + size).astype(int).T), 1)  # with a length of 2 it ends behind the centre
    np.testing.assert_allclose(counts[1:, 1:] / MANY, 1 / 20, atol=0.007)


def grid(height: int, width: int, spec: GridMask, draws: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns the mask of an upright grid's squares, drawn bar by bar."""
    d = spec.d1 + int((spec.d2 - spec.d1) * float(draws[1]))
    bar = int(d * spec.ratio + 0.5)
    squares = np.ones([height, width], bool)
    for offset in range(-d, max(height, width) + d, d):
        for draw, lines in ((draws[4], squares), (draws[3], squares.T)):
            end = offset + int(d * float(draw))  # bars end where squares begin
            lines[max(end - bar, 0) : max(end, 0)] = False
    return squares


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0, 1), st.integers(1, 40), st.integers(0, 1000))
def test_upright_grid_matches_bars(height: int, width: int, ratio: float, d1: int, index: int) -> None:
    image = np.full([height, width, 2], 9, np.uint8)
    for mode in (0, 1):
        spec = GridMask(d1=d1, d2=d1 + 7, ratio=ratio, mode=mode)
        masked = decide_and_apply(spec, image, drawn(spec, index))
        squares = grid(height, width, spec, drawn(spec, index))
        assert (masked.dtype, masked.shape) == (image.dtype, image.shape)
        assert (masked == np.where(squares ^ bool(mode), 9, 0)[..., None]).all()


def test_rotated_grid_keeps_share() -> None:
    image = np.ones([400, 400, 1], np.float32)
    spec = GridMask(d1=20, d2=21, ratio=0.4, rotate=90)
    kept = [decide_and_apply(spec, image, drawn(spec, index)) for index in range(20)]
    np.testing.assert_allclose([each.mean() for each in kept], 0.6**2, atol=0.01)
    upright = [each for each in kept if each.any(axis=0).mean() < 0.7]
    assert len(upright) <= 2, "an upright grid has columns without any square"


def test_grid_distribution() -> None:
    spec = GridMask(d1=30, d2=40, rotate=45, prob=0.3, mode=1)
    tile, share, angle, left, top = decided(spec)
    assert abs((share > 0).mean() - 0.3) < 0.015
    values, counts = np.unique(tile, return_counts=True)
    assert values.tolist() == list(range(30, 40))
    np.testing.assert_allclose(counts / MANY, 0.1, atol=0.01)
    degrees = np.rad2deg(angle)
    assert np.unique(np.rint(degrees)).tolist() == list(range(45))
    for shift in (left, top):
        counts, _ = np.histogram((shift + 0.5) / tile, bins=5, range=(0, 1))
        np.testing.assert_allclose(counts / MANY, 0.2, atol=0.02)


@pytest.mark.parametrize("mode", [0, 1])
def test_unmasked_image_is_unchanged(mode: Any) -> None:
    spec = GridMask(d1=5, d2=9, rotate=90, prob=0, mode=mode)
    assert (decide_and_apply(spec, IMAGE, drawn(spec, 3)) == IMAGE).all()


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 70), st.integers(0, 1000))
def test_patch_is_hidden_completely(height: int, width: int, side: int, index: int) -> None:
    spec = HideAndSeek(grid_sizes=(side,))
    image = np.full([height, width, 2], 9, np.uint8)
    hidden = decide_and_apply(spec, image, drawn(spec, index))
    corners = hidden[::side, ::side]
    grown = corners.repeat(side, axis=0).repeat(side, axis=1)[:height, :width]
    assert (hidden == grown).all()
    assert np.isin(corners[..., 0], (0, 9)).all()


def test_patch_distribution() -> None:
    count = 5_000
    decisions = decided(HideAndSeek(hide_prob=0.3), 224, 224, count)
    start, size = (each.reshape(count, -1, 2) for each in decisions)
    side = size.max(axis=(1, 2))
    values, counts = np.unique(side, return_counts=True)
    assert values.tolist() == [0, 16, 32, 44, 56], "all patches of an image have one size"
    np.testing.assert_allclose(counts / count, 0.2, atol=0.02)
    share = size.prod(axis=2).sum(axis=1) / 224**2
    for value in values[1:]:
        assert abs(share[side == value].mean() - 0.3) < 0.015
    first = size[:, 0].prod(axis=1) > 0
    for other in (1, 14, 15):  # the neighbours to the right and below
        assert abs(np.corrcoef(first[side == 16], size[side == 16, other].prod(axis=1) > 0)[0, 1]) < 0.1
    assert (start + size <= 224).all()


def test_patch_size_zero_hides_nothing() -> None:
    spec = HideAndSeek(grid_sizes=(0,), hide_prob=1)
    assert (decide_and_apply(spec, IMAGE, drawn(spec, 3)) == IMAGE).all()

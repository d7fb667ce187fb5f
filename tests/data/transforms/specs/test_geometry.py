"""Borders, windows and rotations against plain formulas, and the distribution of their decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.numpy_ops import apply, decide_and_apply
from ppcls.data.transforms.specs.decisions import decide, sides_after
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRot90, RandomRotation
from ppcls.data.transforms.specs.rng import uniforms

MANY = 40_000
NONE = np.zeros(0, np.float32)


def decided(spec: Transform, height: int = 100, width: int = 100, count: int = MANY) -> NDArray[Any]:
    """Returns the decisions of a transform with a single decision for ``count`` images of one size."""
    draws = uniforms(3, 0, np.arange(count), spec.draws)
    (rows,) = decide(spec, draws, np.full([count, 2], (height, width)))
    return rows


def noise(height: int, width: int, channels: int = 3, dtype: Any = np.uint8) -> NDArray[Any]:
    return np.random.default_rng(height * width).integers(0, 256, [height, width, channels]).astype(dtype)


@pytest.mark.parametrize(
    ("cls", "fields", "text"),
    [
        (Pad, {"padding": -1}, "[horizontal, vertical], or [left, top, right, bottom], got -1"),
        (Pad, {"padding": [1, 2, 3]}, "[left, top, right, bottom], got [1, 2, 3]"),
        (Pad, {"padding": 1.5}, "[left, top, right, bottom], got 1.5"),
        (RandomRotation, {"degrees": -1}, "expected a number >= 0, or [min, max], got -1"),
        (RandomRotation, {"degrees": [3, 1]}, "expected a number >= 0, or [min, max], got [3, 1]"),
        (RandomRotation, {"degrees": [1, 2, 3]}, "expected a number >= 0, or [min, max], got [1, 2, 3]"),
        (RandomRotation, {"degrees": []}, "expected a number >= 0, or [min, max], got []"),
        (RandomRotation, {"degrees": "far"}, "expected a number >= 0, or [min, max], got 'far'"),
        (RandomRotation, {"degrees": 9, "prob": 1.5}, "expected a number >= 0 and <= 1, got 1.5"),
    ],
)
def test_wrong_field_is_rejected(cls: type[Transform], fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        cls.model_validate(fields)
    (error,) = caught.value.errors()
    assert error["msg"].endswith(text)


def test_short_forms_of_fields_are_read() -> None:
    assert Pad.model_validate({"padding": 3}).padding == (3, 3, 3, 3)
    assert Pad.model_validate({"padding": [3, 4]}).padding == (3, 4, 3, 4)
    assert Pad.model_validate({"padding": [1, 2, 3, 4], "fill": 7}).fill == (7,)
    assert RandomRotation.model_validate({"degrees": 45}).degrees == (-45, 45)
    assert RandomRotation.model_validate({"degrees": ["1/2", 20]}).degrees == (0.5, 20)


SQUARE = ImageState(encoded=False, size=(32, 32), shorter=32)
WIDE = ImageState(encoded=False, size=(32, 40), shorter=32)
SHORT = ImageState(encoded=False, shorter=32)
FLOAT = ImageState(encoded=False, dtype="float32", size=(32, 32), shorter=32)


@pytest.mark.parametrize(
    ("spec", "before", "size", "shorter"),
    [
        (Pad(padding=4), SQUARE, (40, 40), 40),
        (Pad(padding=[1, 2, 3, 4]), WIDE, (38, 44), 38),
        (Pad(padding=4), SHORT, None, 40),
        (Pad(padding=[4, 0]), SHORT, None, None),
        (Pad(padding=4, fill=-2.5), FLOAT, (40, 40), 40),
        (RandomCropImage(size=(30, 20)), WIDE, (20, 30), 20),
        (RandomCropImage(size=(30, 20)), SHORT, (20, 30), 20),
        (RandomRotation(degrees=9), WIDE, (32, 40), 32),
        (RandomRot90(), SQUARE, (32, 32), 32),
        (RandomRot90(), SHORT, None, 32),
    ],
)
def test_state_after_transform(
    spec: Transform, before: ImageState, size: tuple[int, int] | None, shorter: int | None
) -> None:
    after = spec.after(before)
    assert (after.size, after.shorter) == (size, shorter)


@pytest.mark.parametrize(
    ("spec", "before", "text"),
    [
        (Pad(padding=4, fill=256), SQUARE, "expected integers from 0 to 255 in fill, got [256.0]"),
        (Pad(padding=4, fill=(1, 2)), SQUARE, "expected 1 or 3 values in fill, got 2"),
        (
            RandomCropImage(size=33),
            SQUARE,
            "a 33x33 crop needs images of at least 33x33 pixels, "
            "got 32x32; "
            "decrease its size, or resize the images first",
        ),
        (RandomRotation(degrees=9, fill=-1), SQUARE, "expected integers from 0 to 255 in fill, got [-1.0]"),
        (RandomRot90(), WIDE, "expected square images, got 40x32; crop or resize them to a square first"),
    ],
)
def test_unsuitable_image_is_rejected(spec: Transform, before: ImageState, text: str) -> None:
    with pytest.raises(ValueError, match="^" + text.replace("[", r"\[").replace(".", r"\.") + "$"):
        spec.after(before)


@given(
    st.tuples(*[st.integers(0, 20)] * 4),
    st.sampled_from(["constant", "edge", "reflect"]),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_pad_matches_pixel_formula(padding: tuple[int, ...], mode: str, height: int, width: int) -> None:
    image = noise(height, width, 2)
    padded = apply(Pad(padding=padding, padding_mode=mode, fill=(7, 9)), image, ())
    left, top, right, bottom = padding
    assert padded.shape == (height + top + bottom, width + left + right, 2)

    def source(at: int, side: int) -> int:
        if mode == "edge":
            return min(max(at, 0), side - 1)
        period = max(2 * (side - 1), 1)
        return min(at % period, period - at % period) if side > 1 else 0

    for y in range(padded.shape[0]):
        for x in range(padded.shape[1]):
            inside = 0 <= y - top < height and 0 <= x - left < width
            if mode == "constant" and not inside:
                assert padded[y, x].tolist() == [7, 9]
            else:
                row, column = (
                    (y - top, x - left) if inside else (source(y - top, height), source(x - left, width))
                )
                assert (padded[y, x] == image[row, column]).all()


def test_window_positions_are_equally_likely() -> None:
    starts = decided(RandomCropImage(size=(97, 99)), height=101, width=100)
    assert starts.dtype == np.int32
    counts = np.zeros([3, 4])
    np.add.at(counts, tuple(starts.T), 1)
    np.testing.assert_allclose(counts / MANY, 1 / 12, atol=0.006)  # 4 standard deviations


@given(st.integers(5, 30), st.integers(7, 30), st.integers(0, 10**6))
def test_random_crop_returns_window_of_image(height: int, width: int, index: int) -> None:
    image = np.arange(height * width).reshape(height, width, 1)
    cut = decide_and_apply(RandomCropImage(size=(7, 5)), image, uniforms(1, 0, np.array([index]), 2)[0])
    top, left = divmod(int(cut[0, 0, 0]), width)
    assert (cut == image[top : top + 5, left : left + 7]).all()
    assert cut.shape == (5, 7, 1)


def test_window_larger_than_image_is_rejected() -> None:
    with pytest.raises(
        ValueError, match="expected an image of at least 50x20 pixels for this crop, got 40x30"
    ):
        decide_and_apply(RandomCropImage(size=(50, 20)), noise(30, 40), np.zeros(2, np.float32))


def test_angles_are_uniform_for_share_of_images() -> None:
    angles = decided(RandomRotation(prob=0.3, degrees=(-10, 50)))
    assert angles.dtype == np.float32
    turned = angles[angles != 0]
    assert abs(len(turned) / MANY - 0.3) < 0.01
    assert -10 <= turned.min() < -9.9
    assert 49.9 < turned.max() <= 50
    counts, _ = np.histogram(turned, bins=6, range=(-10, 50))
    np.testing.assert_allclose(counts / len(turned), 1 / 6, atol=0.015)
    assert (decided(RandomRotation(prob=0, degrees=9), count=1000) == 0).all()
    assert (decided(RandomRotation(prob=1, degrees=(7, 7)), count=1000) == 7).all()


def rotate(image: NDArray[Any], degrees: float, fill: float) -> NDArray[np.float64]:
    """Rotates counter-clockwise around the centre with bilinear interpolation; ``fill`` is outside."""
    height, width, _ = image.shape
    y, x = np.mgrid[:height, :width] + 0.5
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    across, down = x - width / 2, y - height / 2
    from_x, from_y = cos * across - sin * down + width / 2 - 0.5, sin * across + cos * down + height / 2 - 0.5
    framed = np.pad(image.astype(float), ((1, 1), (1, 1), (0, 0)), constant_values=fill)
    from_x, from_y = np.clip(from_x + 1, 0, width + 1), np.clip(from_y + 1, 0, height + 1)
    left, top = np.minimum(from_x.astype(int), width), np.minimum(from_y.astype(int), height)
    part_x, part_y = (from_x - left)[..., None], (from_y - top)[..., None]
    upper = framed[top, left] * (1 - part_x) + framed[top, left + 1] * part_x
    lower = framed[top + 1, left] * (1 - part_x) + framed[top + 1, left + 1] * part_x
    return upper * (1 - part_y) + lower * part_y


@pytest.mark.parametrize("channels", [1, 3, 6])
@pytest.mark.parametrize("degrees", [-170.0, -30.0, 12.5, 90.0, 100.0])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_rotation_matches_pixel_formula(degrees: float, channels: int, dtype: Any) -> None:
    y, x = np.mgrid[:30, :43]
    smooth = np.stack([128 + 100 * np.sin((k + x) / 5) * np.cos(y / 7) for k in range(channels)], axis=2)
    image = smooth.astype(dtype)
    spec = RandomRotation(degrees=180, interpolation="bilinear", fill=50)
    got = apply(spec, image, (np.float32(degrees),))
    assert (got.shape, got.dtype) == (image.shape, image.dtype)
    # OpenCV before version 5 interpolates at 32nds of a pixel; to the border are up to 178 grey levels
    assert np.abs(got - rotate(image, degrees, 50.0)).max() < 1.01 + 178 / 32


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_unrotated_image_is_unchanged(interpolation: str) -> None:
    image = noise(20, 31)
    spec = RandomRotation(prob=0, degrees=90, interpolation=interpolation)
    assert (decide_and_apply(spec, image, np.float32([0, 0.9])) == image).all()


@pytest.mark.parametrize("quarter", range(4))
def test_quarter_turn_equals_rotation(quarter: int) -> None:
    image = noise(24, 24)
    angle = (np.float32(90 * quarter),)
    turned = apply(RandomRot90(), image, angle)
    assert (turned == np.rot90(image, quarter)).all()
    plain = RandomRotation(degrees=360, interpolation="bilinear")
    assert np.abs(apply(plain, image, angle).astype(int) - turned).max() <= 1


def test_quarter_turns_are_equally_likely_and_swap_sides() -> None:
    angles = decided(RandomRot90(), height=20, width=50)
    values, counts = np.unique(angles, return_counts=True)
    assert values.tolist() == [0, 90, 180, 270]
    np.testing.assert_allclose(counts / MANY, 0.25, atol=0.01)
    sides = sides_after(RandomRot90(), np.full([MANY, 2], (20, 50)), (angles,))
    assert [tuple(each) for each in np.unique(sides[angles % 180 == 90], axis=0)] == [(50, 20)]
    assert [tuple(each) for each in np.unique(sides[angles % 180 == 0], axis=0)] == [(20, 50)]

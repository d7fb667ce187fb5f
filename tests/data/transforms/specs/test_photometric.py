"""Colours and blur against plain formulas, and the distribution of their decisions."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.numpy_ops import apply, decide_and_apply
from ppcls.data.transforms.specs.decisions import decide
from ppcls.data.transforms.specs.photometric import ColorJitter, GaussianBlur, PCALighting, RandomGrayscale
from ppcls.data.transforms.specs.rng import uniforms

MANY = 20_000
LUMA = np.array([0.299, 0.587, 0.114])
IMAGE = np.random.default_rng(1).integers(0, 256, [19, 23, 3]).astype(np.uint8)


def decided(spec: Transform, count: int = MANY) -> tuple[NDArray[Any], ...]:
    return decide(spec, uniforms(3, 0, np.arange(count), spec.draws), np.full([count, 2], 30))


def jitter(image: NDArray[Any], **factors: float) -> NDArray[np.float64]:
    """Applies a jitter with known factors."""
    limits = {name: (value, value) for name, value in factors.items()}
    return decide_and_apply(ColorJitter(**limits), image, np.zeros(5, np.float32)).astype(float)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "fields", "text"),
    [
        (ColorJitter, {"brightness": -1}, "expected a number >= 0, or [min, max], got -1"),
        (ColorJitter, {"contrast": [-1, 1]}, "expected a number >= 0, got -1"),
        (ColorJitter, {"hue": 0.6}, "expected a number >= -0.5 and <= 0.5, got 0.6"),
        (PCALighting, {"alphastd": -0.1}, "expected a number >= 0, got -0.1"),
        (GaussianBlur, {"sigma": 0}, "expected a number > 0, got 0"),
        (GaussianBlur, {"sigma": [2, 1]}, "expected a number >= 0, or [min, max], got [2, 1]"),
        (GaussianBlur, {"kernel_size": 4}, "expected an odd kernel_size, got 4"),
    ],
)
def test_wrong_field_is_rejected(cls: type[Transform], fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        cls.model_validate(fields)
    assert text in [each["msg"].removeprefix("Value error, ") for each in caught.value.errors()]


def test_single_number_means_range() -> None:
    spec = ColorJitter.model_validate(
        {"brightness": 0.4, "contrast": 1.5, "saturation": [0.5, 3], "hue": 0.1}
    )
    assert (spec.brightness, spec.contrast, spec.saturation) == ((0.6, 1.4), (0, 2.5), (0.5, 3))
    assert spec.hue == (-0.1, 0.1)
    assert GaussianBlur.model_validate({"sigma": 1.5}).sigma == (1.5, 1.5)


@pytest.mark.parametrize("spec", [ColorJitter(), RandomGrayscale(), PCALighting()])
@pytest.mark.parametrize(
    ("known", "text"),
    [
        (
            {"normalized": True},
            "expected an 8-bit image, got a normalized one; put this transform before NormalizeImage",
        ),
        ({"dtype": "uint16"}, "expected an 8-bit image, got uint16; set dtype: uint8 in the decoder"),
        ({"channels": 1}, "expected an image with 3 channels, got 1"),
        ({"rgb": False}, "expected an RGB image, got BGR; set to_rgb: True in DecodeImage"),
        ({"layout": "CHW"}, "expected an HWC image, got CHW; put this transform before ToCHWImage"),
    ],
)
def test_color_transforms_need_8_bit_rgb(spec: Transform, known: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        spec.after(ImageState(encoded=False, **known))


def test_blur_accepts_opencv_dtypes() -> None:
    state = ImageState(encoded=False, dtype="float32", channels=7)
    assert GaussianBlur().after(state) == state
    with pytest.raises(
        ValueError, match="float16 images are not supported; put this transform before NormalizeImage"
    ):
        GaussianBlur().after(ImageState(encoded=False, dtype="float16"))


def test_single_factor_matches_formula() -> None:
    pixels = IMAGE.astype(float)
    grey = (pixels @ LUMA)[..., None]
    for factor in (0.0, 0.3, 1.0, 1.7):
        for got, expected in (
            (jitter(IMAGE, brightness=factor), factor * pixels),
            (jitter(IMAGE, contrast=factor), 128 + factor * (pixels - 128)),
            (jitter(IMAGE, saturation=factor), grey + factor * (pixels - grey)),
        ):
            assert np.abs(got - np.clip(expected, 0, 255)).max() <= 1.01


def test_jitter_order_is_saturation_contrast_brightness() -> None:
    pixels = IMAGE.astype(float)
    grey = (pixels @ LUMA)[..., None]
    expected = 0.7 * (128 + 0.5 * (grey + 0.4 * (pixels - grey) - 128))
    got = jitter(IMAGE, brightness=0.7, contrast=0.5, saturation=0.4)
    assert np.abs(got - expected).max() <= 1.01


def test_hue_rotates_red_to_yellow_and_keeps_luma_and_grey() -> None:
    red = np.full([1, 1, 3], (160, 100, 100), np.uint8)
    for turn in (0.05, 0.1, 0.2):
        turned = jitter(red, hue=turn)[0, 0]
        hue = colorsys.rgb_to_hsv(*turned / 255)[0]
        assert abs(hue - turn) < 0.04, "a full turn is 1; YIQ and HSV agree roughly"
        assert abs(turned @ LUMA - red[0, 0] @ LUMA) < 1.01
    back = jitter(jitter(red, hue=0.2).astype(np.uint8), hue=-0.2)
    assert np.abs(back - red).max() <= 2
    half = jitter(red, hue=0.5)[0, 0]
    assert half[0] < half[1]
    grey = np.full([1, 1, 3], 77, np.uint8)
    assert (jitter(grey, hue=0.3) == 77).all()


def test_jitter_factors_are_uniform_in_ranges() -> None:
    matrix, offset = decided(ColorJitter(prob=0.6, brightness=0.4, contrast=0.2))
    changed = ~(matrix == np.eye(3)).all(axis=(1, 2))
    assert abs(changed.mean() - 0.6) < 0.015
    assert (offset[~changed] == 0).all()
    gain, shift = matrix[changed, 0, 0].astype(float), offset[changed, 0].astype(float)
    brightness = gain + shift / 128  # matrix b c, offset 128 b (1 - c)
    contrast = gain / brightness
    for found, low, high in ((brightness, 0.6, 1.4), (contrast, 0.8, 1.2)):
        counts, _ = np.histogram(found, bins=5, range=(low - 1e-5, high + 1e-5))
        assert counts.sum() == len(found)
        np.testing.assert_allclose(counts / len(found), 0.2, atol=0.02)
    assert abs(np.corrcoef(brightness, contrast)[0, 1]) < 0.03


def test_grayscale_is_luma_for_share_of_images() -> None:
    matrix, _ = decided(RandomGrayscale(prob=0.2))
    grey = (matrix[:, 0] == matrix[:, 1]).all(axis=1)
    assert abs(grey.mean() - 0.2) < 0.012
    assert (matrix[~grey] == np.eye(3)).all()
    made = decide_and_apply(RandomGrayscale(prob=1), IMAGE, np.zeros(1, np.float32))
    assert np.abs(made - (IMAGE @ LUMA)[..., None]).max() <= 1.01
    assert (made[..., 0] == made[..., 1]).all()
    assert (made[..., 1] == made[..., 2]).all()
    assert decide_and_apply(RandomGrayscale(prob=0), IMAGE, np.zeros(1, np.float32)) is IMAGE


def test_lighting_is_normal_along_principal_axes() -> None:
    matrix, offset = decided(PCALighting())
    assert (matrix == np.eye(3)).all()
    # Krizhevsky et al.: eigenvectors, times 0.1 of the square roots of the eigenvalues of colours from 0 to 1
    extents, axes = np.linalg.eigh(np.cov(offset.T))
    np.testing.assert_allclose(np.sqrt(extents[::-1]) / 25.5, [0.2175, 0.0188, 0.0045], rtol=0.03)
    most = axes[:, 2] * np.sign(axes[0, 2])
    np.testing.assert_allclose(most, [0.5675, 0.5808, 0.5836], atol=0.01)
    assert np.abs(offset.mean(0)).max() < 0.15
    along = offset @ most / offset.std(0).mean() / np.sqrt(3)
    assert np.abs(np.mean(np.abs(along) < 1) - 0.6827) < 0.02


def test_lighting_shifts_all_pixels_equally() -> None:
    drawn = np.array([0.4, 0.9, 0.2, 0.05], np.float32)
    (offset,) = decide(PCALighting(alphastd=0.5), drawn[None], np.full([1, 2], 30))[1]
    assert np.abs(offset).max() > 10
    made = decide_and_apply(PCALighting(alphastd=0.5), IMAGE, drawn)
    assert made.dtype == np.uint8
    assert np.abs(made - np.clip(IMAGE + offset, 0, 255)).max() <= 0.51
    assert decide_and_apply(PCALighting(alphastd=0), IMAGE, drawn) is IMAGE


def blur(image: NDArray[Any], sigma: float, size: int) -> NDArray[np.float64]:
    """Convolves with a normalized Gaussian along both axes, the image mirrored at its edge."""
    at = np.arange(size) - size // 2
    kernel = np.exp(-(at**2) / (2 * sigma**2))
    kernel /= kernel.sum()
    half = size // 2
    framed = np.pad(image.astype(float), ((half, half), (half, half), (0, 0)), mode="reflect")
    rows = sum(weight * framed[k : k + image.shape[0]] for k, weight in enumerate(kernel))
    return np.asarray(sum(weight * rows[:, k : k + image.shape[1]] for k, weight in enumerate(kernel)))


@given(st.floats(0.1, 4), st.sampled_from([1, 3, 9, 23]), st.sampled_from([1, 3, 5]), st.booleans())
def test_blur_equals_convolution(sigma: float, size: int, channels: int, floats: bool) -> None:
    image = np.random.default_rng(2).integers(0, 256, [12, 17, channels])
    image = image.astype(np.float32 if floats else np.uint8)
    got = apply(GaussianBlur(kernel_size=size), image, (np.float32(sigma),))
    assert (got.shape, got.dtype) == (image.shape, image.dtype)
    # OpenCV rounds the weights for 8-bit pixels to 256ths
    assert np.abs(got - blur(image, sigma, size)).max() < (0.01 if floats else 2.6)


def test_sigma_is_uniform_in_range_for_share_of_images() -> None:
    (sigma,) = decided(GaussianBlur(prob=0.7, sigma=(0.5, 2.5)))
    blurred = sigma[sigma >= 0.5]
    assert abs(len(blurred) / MANY - 0.7) < 0.015
    counts, _ = np.histogram(blurred, bins=4, range=(0.5, 2.5))
    np.testing.assert_allclose(counts / len(blurred), 0.25, atol=0.02)
    assert decide_and_apply(GaussianBlur(prob=0), IMAGE, np.zeros(2, np.float32)) is IMAGE

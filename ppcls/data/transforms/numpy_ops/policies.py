"""Implements the operations of automatic augmentation with OpenCV."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, radians, sin
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.numpy_ops.chain import apply
from ppcls.data.transforms.specs.decisions import Decisions
from ppcls.data.transforms.specs.mixed_policies import AugMix
from ppcls.data.transforms.specs.policies import Policy

Image = NDArray[np.uint8]
Table = NDArray[np.uint8]  # lookup table, [256], or [256, 3] with one column per channel

_LEVELS = np.arange(256)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


@apply.register
def apply_policy(spec: Policy, image: np.ndarray, decisions: Decisions) -> Image:
    return _run_stages(spec, image, decisions, range(len(spec.stages)))


@apply.register
def mix_chains(spec: AugMix, image: np.ndarray, decisions: Decisions) -> Image:
    weights = decisions[-1]
    if not weights.any():
        return image
    mixed = (np.float32(1) - weights.sum()) * image.astype(np.float32)
    for chain, weight in enumerate(weights):
        steps = range(chain * spec.depth, (chain + 1) * spec.depth)
        mixed += weight * _run_stages(spec, image, decisions, steps)
    return _rounded(mixed)


def _run_stages(spec: Policy, image: Image, decisions: Decisions, stages: range) -> Image:
    suite = spec.suite
    relative = spec.translation[1]
    for stage in stages:
        operation, number, negated = (part[stage] for part in decisions[:3])
        augmentation = suite[spec.stages[stage][operation]]
        if augmentation.name == "cutout":
            image = _fill_square(image, decisions[-1][stage], spec.fill_value)
            continue
        magnitude = float(augmentation.magnitudes(spec.bins)[number])
        if augmentation.signed and negated:
            magnitude = -magnitude
        if augmentation.name.startswith("translate") and relative:
            magnitude *= image.shape[1] if augmentation.name == "translate_x" else image.shape[0]
        if augmentation.name in ENHANCE and augmentation.signed:
            magnitude += 1
        image = augment(augmentation.name, image, magnitude, spec.fill_value)
    return image


def _fill_square(image: Image, square: NDArray[np.float32], fill: int) -> Image:
    top, left, height, width = square.astype(int)
    image = image.copy()
    image[top : top + height, left : left + width] = fill
    return image


def augment(name: str, image: Image, parameter: float, fill: int) -> Image:
    """Applies one operation to an image.

    Args:
        name: Name of the operation, a key of `WARP`, `ENHANCE` or `POINT`.
        image: RGB image, [H, W, 3] uint8.
        parameter: Strength of the operation: the distance of a translation in pixels, the slope of a shear,
            the angle of a rotation in degrees, or the factor of an enhancement. For posterize, the number of
            bits to retain. For solarize, the lowest grey level to invert. For solarize_add, the number of
            grey levels to add. Other operations ignore it.
        fill: Grey level of the uncovered area.
    """
    if name in WARP:
        return warp(image, WARP[name](parameter, image.shape[1], image.shape[0]), fill)
    return (ENHANCE | POINT)[name](image, parameter)


def warp(image: Image, matrix: NDArray[np.float64], fill: int) -> Image:
    """Warps an image with an affine map and bilinear interpolation.

    Args:
        image: Image, [H, W, 3] uint8.
        matrix: [2, 3] map from old to new coordinates (x, y). The origin is the upper left corner of the
            image, so the centre of the first pixel is (0.5, 0.5).
        fill: Grey level of the uncovered area.
    """
    # OpenCV's coordinates start at the centre of the first pixel.
    centred = matrix.copy()
    centred[:, 2] += matrix[:, :2] @ (0.5, 0.5) - 0.5
    size = image.shape[1], image.shape[0]
    return _as_image(
        cv2.warpAffine(image, centred, size, flags=cv2.INTER_LINEAR, borderValue=(fill, fill, fill))
    )


def _as_image(pixels: Any) -> Image:
    return np.asarray(pixels, np.uint8)


def _matrix(*rows: tuple[float, float, float]) -> NDArray[np.float64]:
    return np.array(rows, np.float64)


def _rotation(angle: float, width: int, height: int) -> NDArray[np.float64]:
    """Returns the matrix of a counter-clockwise rotation by ``angle`` degrees around the image's centre."""
    c = cos(radians(angle))
    s = sin(radians(angle))
    x = width / 2
    y = height / 2
    return _matrix((c, s, x - c * x - s * y), (-s, c, y + s * x - c * y))


WARP: dict[str, Callable[[float, int, int], NDArray[np.float64]]] = {
    "translate_x": lambda by, *_: _matrix((1, 0, by), (0, 1, 0)),
    "translate_y": lambda by, *_: _matrix((1, 0, 0), (0, 1, by)),
    "shear_x": lambda by, *_: _matrix((1, by, 0), (0, 1, 0)),
    "shear_y": lambda by, *_: _matrix((1, 0, 0), (by, 1, 0)),
    "rotate": _rotation,
}


def _rounded(levels: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns the levels clipped to 0..255 and rounded. Halves are rounded up, as in DALI."""
    return np.clip(np.floor(levels + np.float32(0.5)), 0, 255).astype(np.uint8)


def _look_up(image: Image, table: Table) -> Image:
    return _as_image(cv2.LUT(image, table[None] if table.ndim == 2 else table))


def _brightness(image: Image, factor: float) -> Image:
    return _look_up(image, _rounded(np.float32(factor) * _LEVELS.astype(np.float32)))


def _contrast(image: Image, factor: float) -> Image:
    """Scales the differences between pixels and the mean luma of the image by ``factor``."""
    centre = np.float32(cv2.mean(image)[:3] @ _LUMA)
    return _look_up(image, _rounded(centre + (_LEVELS.astype(np.float32) - centre) * np.float32(factor)))


def _color(image: Image, factor: float) -> Image:
    """Scales the difference between each pixel's colour and its luma by ``factor``."""
    matrix = np.float32(factor) * np.eye(3, dtype=np.float32) + np.float32(1 - factor) * _LUMA
    return _as_image(cv2.transform(image, matrix))


def _sharpness(image: Image, factor: float) -> Image:
    """Scales the difference between the image and a smoothed image by ``factor``.

    The 3x3 kernel of the smoothed image has the weight 5 in the middle and 1 elsewhere.
    """
    smooth = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    kernel = (1 - factor) * smooth
    kernel[1, 1] += factor
    return _as_image(cv2.filter2D(image, -1, kernel, borderType=cv2.BORDER_REFLECT_101))


ENHANCE: dict[str, Callable[[Image, float], Image]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "color": _color,
    "sharpness": _sharpness,
}


def _posterize(image: Image, bits: float) -> Image:
    """Retains the upper ``bits`` of each value, at least one bit, and sets the others to 0."""
    kept_bits = min(max(round(bits), 1), 8)
    return image & np.uint8(256 - 2 ** (8 - kept_bits))


def _solarize(image: Image, threshold: float) -> Image:
    return _look_up(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS).astype(np.uint8))


def _solarize_add(image: Image, shift: float) -> Image:
    return _look_up(image, np.where(_LEVELS < 128, _LEVELS + int(shift), _LEVELS).astype(np.uint8))


def _equalize(image: Image, _: float) -> Image:
    return _as_image(cv2.merge([cv2.equalizeHist(channel) for channel in cv2.split(image)]))


def _auto_contrast(image: Image, _: float) -> Image:
    """Stretches the values of each channel to 0..255. A channel with a single value remains unchanged."""
    table = np.empty([256, 3], np.uint8)
    for number, channel in enumerate(cv2.split(image)):
        low, high, *_places = cv2.minMaxLoc(channel)
        factor = np.float32(255) / np.float32(high - low) if high > low else np.float32(1)
        table[:, number] = _rounded((_LEVELS - (low if high > low else 0)).astype(np.float32) * factor)
    return _look_up(image, table)


POINT: dict[str, Callable[[Image, float], Image]] = {
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "equalize": _equalize,
    "auto_contrast": _auto_contrast,
    "invert": lambda image, _: 255 - image,
    "identity": lambda image, _: image,
}

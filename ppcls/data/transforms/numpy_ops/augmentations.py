"""Implements geometric, photometric and erasing transforms with OpenCV and NumPy."""

from __future__ import annotations

import cv2
import numpy as np

from ppcls.data.transforms.base import CustomTransform
from ppcls.data.transforms.numpy_ops.chain import Array, apply, crop
from ppcls.data.transforms.specs.blur import BlurImage
from ppcls.data.transforms.specs.decisions import Decisions
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, HideAndSeek, RandomErasing, noise_bank
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRot90, RandomRotation
from ppcls.data.transforms.specs.photometric import NO_BLUR, ColorMap, GaussianBlur

_INTERPOLATION = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR}
_MAX_CHANNELS = 4  # maximum number of channels for which OpenCV accepts a border colour


@apply.register
def apply_custom(spec: CustomTransform, image: np.ndarray, decisions: Decisions) -> Array:
    return spec.apply(image, decisions[0] if decisions else np.zeros(0, np.float32))


@apply.register
def pad_image(spec: Pad, image: np.ndarray, decisions: Decisions) -> Array:
    left, top, right, bottom = spec.padding
    if spec.padding_mode != "constant":
        return np.pad(image, ((top, bottom), (left, right), (0, 0)), spec.padding_mode)
    height, width, channels = image.shape
    padded = np.empty([height + top + bottom, width + left + right, channels], image.dtype)
    padded[:] = np.asarray(spec.fill, image.dtype)
    padded[top : top + height, left : left + width] = image
    return padded


@apply.register
def crop_random_window(spec: RandomCropImage, image: np.ndarray, decisions: Decisions) -> Array:
    top, left = decisions[0]
    return crop(image, top, left, spec.size)


@apply.register
def rotate_image(spec: RandomRotation, image: np.ndarray, decisions: Decisions) -> Array:
    (angle,) = decisions
    if angle == 0:
        return image
    height, width, channels = image.shape
    # OpenCV does not support float16.
    pixels = image.astype(np.float32) if image.dtype == np.float16 else image
    # OpenCV's coordinates start at the centre of the first pixel.
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), float(angle), 1.0)
    rotated = [
        cv2.warpAffine(
            pixels[:, :, begin : begin + _MAX_CHANNELS],
            matrix,
            (width, height),
            flags=_INTERPOLATION[spec.interpolation],
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=[spec.fill] * _MAX_CHANNELS,
        ).reshape(height, width, -1)
        for begin in range(0, channels, _MAX_CHANNELS)
    ]
    joined = rotated[0] if len(rotated) == 1 else np.concatenate(rotated, axis=2)
    return joined.astype(image.dtype, copy=False)


@apply.register
def rotate_by_quarter_turns(spec: RandomRot90, image: np.ndarray, decisions: Decisions) -> Array:
    return np.rot90(image, int(decisions[0]) // 90)


@apply.register
def map_colors(spec: ColorMap, image: np.ndarray, decisions: Decisions) -> Array:
    matrix, offset = decisions
    if not offset.any() and (matrix == np.eye(3)).all():
        return image
    return np.asarray(cv2.transform(image, np.column_stack([matrix, offset])))


@apply.register
def blur_image(spec: GaussianBlur, image: np.ndarray, decisions: Decisions) -> Array:
    (sigma,) = decisions
    if sigma <= np.float32(NO_BLUR):
        return image
    kernel = (spec.kernel_size, spec.kernel_size)
    return np.asarray(cv2.GaussianBlur(image, kernel, float(sigma))).reshape(image.shape)


@apply.register
def blur_by_kernel(spec: BlurImage, image: np.ndarray, decisions: Decisions) -> Array:
    blurred, kernel = decisions
    return np.asarray(cv2.filter2D(image, -1, kernel)).reshape(image.shape) if blurred else image


@apply.register
def erase_rectangle(spec: RandomErasing, image: np.ndarray, decisions: Decisions) -> Array:
    (top, left), (height, width) = (values.astype(int) for values in decisions[:2])
    if not height:
        return image
    if spec.mode == "pixel":
        bank = noise_bank()
        rows, columns = (np.arange(a, a + n) for a, n in ((top, height), (left, width)))
        begin = decisions[2]
        fill = bank[np.ix_((begin[0] + rows) % len(bank), (begin[1] + columns) % len(bank))]
    else:
        fill = decisions[2] if spec.mode == "rand" else np.asarray(spec.mean)
    erased = image.copy()
    erased[top : top + height, left : left + width] = fill
    return erased


def _fill_rectangles(image: np.ndarray, decisions: Decisions, fill: tuple[float, ...]) -> Array:
    starts, sizes = (values.astype(int).reshape(-1, 2) for values in decisions)
    filled = sizes.all(axis=1)
    colour = np.asarray(fill)
    erased = image.copy()
    for (top, left), (height, width) in zip(starts[filled], sizes[filled], strict=True):
        erased[top : top + height, left : left + width] = colour
    return erased


@apply.register
def cut_out_holes(spec: Cutout, image: np.ndarray, decisions: Decisions) -> Array:
    fill = spec.fill_value or tuple(decisions[2].tolist())
    return _fill_rectangles(image, decisions[:2], fill)


@apply.register
def hide_patches(spec: HideAndSeek, image: np.ndarray, decisions: Decisions) -> Array:
    return _fill_rectangles(image, decisions, (0,))


@apply.register
def mask_grid(spec: GridMask, image: np.ndarray, decisions: Decisions) -> Array:
    tile, share, angle, *shifts = (np.float32(values) for values in decisions)
    along = np.cos(angle) / tile
    across = np.sin(angle) / tile
    left, top = (shift / tile for shift in shifts)
    y, x = (np.arange(side, dtype=np.float32) for side in image.shape[:2])
    column = x[None] * along - (y * across)[:, None] - left
    row = x[None] * across + (y * along)[:, None] - top
    square = (column - np.floor(column) < share) & (row - np.floor(row) < share)
    visible = square if spec.mode == 0 else ~square
    return np.asarray(image * visible[:, :, None].astype(image.dtype))

"""Resizing inside an exported graph that returns the same pixels as Pillow: bilinear, bicubic and Lanczos.

Pillow (src/libImaging/Resample.c) averages over all source pixels that a new pixel covers, along one axis and
then along the other. Weights are whole numbers of 22 bits, and each of the two results is rounded to
8 bits. The graph computes with whole numbers in float32, like `in_graph`. Products of a pixel (8 bits) and a
weight (22 bits) do not fit into the 24 bits of float32, so each weight is divided into three parts of 8 bits
or less. Thus sums over up to 258 source pixels are exact, in any order.

A matrix of weights for the whole width would be almost empty for large images. So `BLOCK` new pixels are
computed together from a window of the source pixels that they need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import paddle
from PIL import Image

from ppcls.deploy.in_graph.graph_numbers import arange, int64
from ppcls.deploy.in_graph.resampling_weights import (
    bicubic_weights,
    bilinear_weights,
    lanczos_weights,
)

Tensor = Any  # in a graph under construction
Resampling = Literal["bilinear", "bicubic", "lanczos"]

BLOCK = 16
_PART = 2.0**8
_TOP = 2.0**16
_HALF = 2.0**5  # 2^21 in units of the top part, for rounding
_LAST = 2.0**6  # 2^22 in units of the top part
_SUPPORT: dict[Resampling, int] = {"bilinear": 1, "bicubic": 2, "lanczos": 3}  # in pixels, on each side


def resize_like_pillow(images: Tensor, height: Tensor, width: Tensor, method: Resampling) -> Tensor:
    """Returns resized images, [N, height, width, C] float32 of whole numbers.

    Args:
        images: Images, [N, H, W, C] float32 of whole numbers 0 to 255.
        height: New height, a scalar int64.
        width: New width, a scalar int64.
        method: Interpolation.
    """
    rows = _length(images, 1)
    columns = _length(images, 2)
    swap = _height_first(rows, columns, height, width)
    keep = int64(1) - swap
    first = swap * rows + keep * columns  # length of the axis that is resized first
    second = swap * columns + keep * rows
    pixels = _order_pixels(images, first, second, swap * columns + keep, swap + keep * columns)
    resized = _resize_axis(pixels, swap * height + keep * width, method)
    resized = _resize_axis(resized.transpose([2, 1, 0, 3]), swap * width + keep * height, method)
    resized = resized.transpose([1, 0, 2, 3])  # [N, height, width, C], or [N, width, height, C] if swap is 1
    result = _order_pixels(resized, height, width, swap + keep * width, swap * height + keep)
    return result.transpose([1, 0, 2, 3])


def resizes_height_first() -> bool:
    """Returns whether the installed Pillow resizes some images along their height first, as version 13 does.

    These are images whose height shrinks by more than twice as many pixels as their width. The order matters,
    because the result of the first step is rounded.
    """
    noise = np.random.default_rng(0).integers(0, 256, (60, 16, 3)).astype(np.uint8)
    image = Image.fromarray(noise)
    method = Image.Resampling.BICUBIC
    height_first = image.resize((16, 30), method).resize((11, 30), method)
    return height_first.tobytes() == image.resize((11, 30), method).tobytes()


def _height_first(rows: Tensor, columns: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Returns 1 if Pillow resizes along the height first, else 0, [1] int64."""
    shrinks = (rows - height) > int64(2) * (columns - width)
    swap = paddle.logical_and(shrinks, height < rows).astype("int64")
    return swap * int64(int(resizes_height_first()))


def _length(images: Tensor, axis: int) -> Tensor:
    """Returns the length of an axis as a scalar, int64."""
    return paddle.shape(images)[axis].astype("int64")


def _order_pixels(images: Tensor, first: Tensor, second: Tensor, step: Tensor, other_step: Tensor) -> Tensor:
    """Returns the pixels of images in another order, [first, N, second, C].

    Args:
        images: Images, [N, H, W, C].
        first: Length of the first axis.
        second: Length of the third axis.
        step: Distance of two pixels along the first axis in an image.
        other_step: Distance of two pixels along the third axis in an image.
    """
    count = _length(images, 0).reshape([1])
    flat = images.reshape(paddle.concat([count, int64(-1), int64(3)]))
    along = paddle.arange(first.reshape([1])[0], dtype="int64") * step
    across = paddle.arange(second.reshape([1])[0], dtype="int64") * other_step
    indexes = (along.reshape([-1, 1]) + across.reshape([1, -1])).reshape([-1])
    shape = paddle.concat([count, first.reshape([1]), second.reshape([1]), int64(3)])
    return paddle.gather(flat, indexes, axis=1).reshape(shape).transpose([1, 0, 2, 3])


def _resize_axis(images: Tensor, side: Tensor, method: Resampling) -> Tensor:
    """Resizes images along their first axis, [L, ...], to [side, ...]."""
    length = paddle.shape(images)[0].astype("int64")
    rest = paddle.shape(images)[1:]
    indexes, weights = _weights(length, side, method)
    window = paddle.shape(indexes)[1:2].astype("int64")
    chosen = paddle.gather(images, paddle.minimum(indexes, length - int64(1)).reshape([-1]), axis=0)
    blocks = paddle.shape(indexes)[:1].astype("int64")
    chosen = chosen.reshape(paddle.concat([blocks, window, int64(-1)]))  # [blocks, window, pixels]
    top, middle, low = (paddle.matmul(part, chosen) for part in _split(weights))
    carry = paddle.floor((middle + paddle.floor(low * (1 / _PART))) * (1 / _PART))
    values = paddle.floor((top + _HALF + carry) * (1 / _LAST))
    values = paddle.minimum(
        paddle.maximum(values, paddle.zeros_like(values)), paddle.full_like(values, 255.0)
    )
    rows = values.reshape(paddle.concat([blocks * int64(BLOCK), int64(-1)]))
    rows = paddle.gather(rows, paddle.arange(side, dtype="int64"), axis=0)
    return rows.reshape(paddle.concat([side.reshape([1]), rest.astype("int64")]))


def _weights(length: Tensor, side: Tensor, method: Resampling) -> tuple[Tensor, Tensor]:
    """Returns the source pixels of each block of new pixels, and their weights.

    Returns:
        Indexes, [blocks, window] int64, which can be ``length`` or larger at the end, with a weight of 0; and
        weights, [blocks, BLOCK, window] float32 of whole numbers, in units of 2^-22.
    """
    support = _SUPPORT[method]
    twice = int64(2)
    larger = paddle.maximum(length, side)
    blocks = (side + int64(BLOCK - 1)) // int64(BLOCK)
    firsts = paddle.arange(blocks[0], dtype="int64") * int64(BLOCK)
    # All divisions are of numbers >= 0, because engines round negative quotients differently.
    reach = int64(2 * support) * larger
    begins = paddle.maximum((twice * firsts + int64(1)) * length - reach, int64(0)) // (twice * side)
    window = (int64(2 * BLOCK - 2) * length + twice * reach) // (twice * side) + int64(3)
    indexes = begins.reshape([-1, 1]) + paddle.arange(window[0], dtype="int64").reshape([1, -1])
    pixels = firsts.reshape([-1, 1]) + arange(BLOCK).reshape([1, -1])
    pixels = paddle.minimum(pixels, side - int64(1))  # the last block can be longer than the image
    # Twice the distance between the centres of a source and a new pixel, multiplied by ``side``: exact.
    distance = (twice * pixels + int64(1)).reshape([-1, BLOCK, 1]) * length
    indexes_of_block = paddle.unsqueeze(indexes, 1)
    distance = paddle.abs(distance - (twice * indexes_of_block + int64(1)) * side)
    width = twice * larger
    used = (indexes_of_block < length).astype("float32")
    weights = _WEIGHTS[method](distance, width, used)
    return indexes, weights


def _split(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns three parts of weights: multiples of 2^16, multiples of 2^8, and the rest, each 0 to 255."""
    top = paddle.floor(weights * (1 / _TOP))
    rest = weights - top * _TOP
    middle = paddle.floor(rest * (1 / _PART))
    return top, middle, rest - middle * _PART


_WEIGHTS: dict[Resampling, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "bilinear": bilinear_weights,
    "bicubic": bicubic_weights,
    "lanczos": lanczos_weights,
}

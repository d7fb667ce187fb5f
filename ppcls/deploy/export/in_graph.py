"""Preprocessing as part of an exported graph: the very pixels that OpenCV makes, from tensor operations.

OpenCV resizes 8-bit images in integers, with weights of 11 bits, and rounds on the way. Here they are whole
numbers in float32, which holds all of them exactly, so the bits are the same: every program that runs graphs
has operators for float32, and few for integers or float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import paddle
from paddle import nn

from ppcls.config.sections.transform import Transform
from ppcls.data.transforms.specs import CropImage, DecodeImage, NormalizeImage, ResizeImage, ToCHWImage
from ppcls.errors import UserError

Tensor = Any  # in a graph under construction
Step = Callable[[Tensor], Tensor]

_HEIGHT, _WIDTH = 1, 2  # axes of [N, H, W, C]
_ONE = 2.0**11  # as OpenCV's weights have it


class Preprocessing(nn.Layer):  # type: ignore[misc]
    """Maps images [N, H, W, C] uint8, of any size, to a model's input, as a chain of transforms does.

    Args:
        specs: The chain, beginning with DecodeImage, which is left to the caller: the images are upright,
            and have RGB order whatever it says.

    Raises:
        UserError: A transform has no form in a graph.
    """

    def __init__(self, specs: Sequence[Transform]) -> None:
        super().__init__()
        decoder = specs[0]
        if not isinstance(decoder, DecodeImage) or (decoder.channels, decoder.dtype) != (3, "uint8"):
            raise _refusal(0, decoder, "the graph takes 8-bit RGB")
        self._steps: list[Step] = [] if decoder.to_rgb else [_reverse_channels]
        for position, spec in enumerate(specs[1:], start=1):
            try:
                self._steps.append(step_of(spec))
            except NotImplementedError as error:
                raise _refusal(position, spec, str(error)) from None

    def forward(self, images: Tensor) -> Tensor:
        """Returns [N, C, H, W] or [N, H, W, C] float32."""
        images = images.astype("float32")  # for few operators know uint8
        for step in self._steps:
            images = step(images)
        return images


def _refusal(position: int, spec: Transform, reason: str) -> UserError:
    return UserError(
        f"Infer.transforms[{position}].{spec.kind}: can't be put into the exported graph: {reason}; export "
        "without --preprocess, and prepare the images as inference.yml says"
    )


@singledispatch
def step_of(spec: Transform) -> Step:
    """Returns what a transform does to images [N, H, W, C], whole numbers until NormalizeImage.

    Raises:
        NotImplementedError: It has no form in a graph.
    """
    raise NotImplementedError("it has no form in a graph")


def _reverse_channels(images: Tensor) -> Tensor:
    return paddle.gather(images, paddle.arange(2, -1, -1, dtype="int64"), axis=3)


@step_of.register
def _(spec: ToCHWImage) -> Step:  # noqa: ARG001 - its type says it all
    return lambda images: images.transpose([0, 3, 1, 2])


@step_of.register
def _(spec: NormalizeImage) -> Step:
    # As numpy_ops has it: float32 at each step.
    scale, mean, std = (np.asarray(each, np.float32) for each in (spec.scale, spec.mean, spec.std))

    def normalize(images: Tensor) -> Tensor:
        pixels = images.astype("float32") * float(scale)
        pixels = (pixels - paddle.to_tensor(mean)) / paddle.to_tensor(std)
        if spec.channel_num == 4:
            pixels = paddle.concat([pixels, paddle.zeros_like(pixels[:, :, :, :1])], axis=-1)
        return pixels.astype("float16").astype("float32") if spec.output_fp16 else pixels

    return normalize


@step_of.register
def _(spec: CropImage) -> Step:
    width, height = spec.size

    def crop(images: Tensor) -> Tensor:
        for axis, side in ((_HEIGHT, height), (_WIDTH, width)):
            begin = (_length(images, axis) - _whole(side)) // _whole(2)
            images = paddle.gather(images, paddle.arange(side, dtype="int64") + begin, axis=axis)
        return images

    return crop


@step_of.register
def _(spec: ResizeImage) -> Step:
    if spec.backend != "cv2":
        raise NotImplementedError("only backend: cv2 has a form in a graph")

    def resize(images: Tensor) -> Tensor:
        resized = _interpolate(images, *_target(spec, images))
        if spec.size is None:
            return resized
        width, height = spec.size
        return resized.reshape([-1, height, width, 3])  # for models that must know

    return resize


def _length(images: Tensor, axis: int) -> Tensor:
    """Returns how long an axis is, a scalar int64."""
    return paddle.shape(images)[axis].astype("int64")


def _whole(number: int) -> Tensor:
    """Returns a constant, [1] int64.

    In arithmetic with integers and float64 a plain number makes a `scale`, which Paddle Inference 3.3 on a
    CPU does in place though others read on, or leaves out.
    """
    return paddle.full([1], number, "int64")


def _float(number: float) -> Tensor:
    """Returns a constant, [1] float64; see `_whole`."""
    return paddle.full([1], number, "float64")


def _target(spec: ResizeImage, images: Tensor) -> tuple[Tensor, Tensor]:
    """Returns height and width; see `ppcls.data.transforms.specs.basic.scale_to_short_side`."""
    height, width = _length(images, _HEIGHT), _length(images, _WIDTH)
    if spec.size is not None:
        zero = height - height  # so that nobody computes ahead: Paddle Inference 3.3 on a CPU does it wrongly
        return zero + _whole(spec.size[1])[0], zero + _whole(spec.size[0])[0]
    assert spec.resize_short is not None
    shorter = paddle.minimum(height, width)
    twice = _whole(2 * spec.resize_short)
    scaled = [(side * twice + shorter) // (shorter + shorter) for side in (height, width)]
    return scaled[0], scaled[1]


def _places(length: Tensor, side: Tensor) -> Tensor:
    """Returns where the new pixels' centres are among the old ones, [side] float64."""
    middles = paddle.arange(side, dtype="int64").astype("float64") + _float(0.5)
    return middles * (length.astype("float64") / side.astype("float64"))


def _taps(length: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first of two neighbours of each new pixel [side] int64, and the share of the second."""
    where = (_places(length, side) - _float(0.5)).astype("float32")
    first = paddle.floor(where)
    return first.astype("int64"), where - first


def _weights(share: Tensor) -> tuple[Tensor, Tensor]:
    """Returns OpenCV's weights of both neighbours, whole numbers."""
    return _round((1.0 - share) * _ONE), _round(share * _ONE)


def _round(x: Tensor) -> Tensor:
    """Rounds x >= 0, halves to even numbers; Paddle's own rounding is not everywhere the same."""
    up = paddle.floor(x + 0.5)
    odd = up - 2.0 * paddle.floor(up * 0.5)
    return up - odd * (up - x == 0.5).astype("float32")


def _within(index: Tensor, length: Tensor) -> Tensor:
    """Returns the nearest of the places 0..length - 1."""
    return paddle.minimum(paddle.maximum(index, _whole(0)), length - _whole(1))


def _interpolate(images: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Resizes as OpenCV's INTER_LINEAR does 8-bit images."""
    rows, columns = _length(images, _HEIGHT), _length(images, _WIDTH)
    top, down = _taps(rows, height)
    left, right = _taps(columns, width)
    inside = paddle.logical_and(left >= _whole(0), left < columns - _whole(1)).astype("float32")
    near, far = (each.reshape([1, 1, -1, 1]) for each in _weights(right * inside))
    left, after = (_within(each, columns) for each in (left, left + _whole(1)))

    def of_rows(index: Tensor) -> Tensor:
        """Returns rows [N, height, width, C], resized along the width, in 1/128."""
        chosen = paddle.gather(images, _within(index, rows), axis=_HEIGHT)
        first, second = (paddle.gather(chosen, each, axis=_WIDTH) for each in (left, after))
        return paddle.floor((first * near + second * far) * 2.0**-4)

    def weighted(pixels: Tensor, weight: Tensor) -> Tensor:
        """Returns the whole part of pixels x weight / 2^16, by numbers of less than float32's 24 bits."""
        high = paddle.floor(weight * 2.0**-6)
        low = weight - high * 2.0**6
        return paddle.floor((pixels * high + paddle.floor(pixels * low * 2.0**-6)) * 2.0**-10)

    upper, lower = (each.reshape([1, -1, 1, 1]) for each in _weights(down))
    return paddle.floor(
        (weighted(of_rows(top), upper) + weighted(of_rows(top + _whole(1)), lower) + 2.0) * 0.25
    )

"""Preprocessing inside an exported graph: tensor operations that return the same pixels as OpenCV and Pillow.

OpenCV resizes 8-bit images with integers, 11-bit weights and intermediate rounding. This module computes with
whole numbers in float32, which represents all of them exactly, so the results are bit-identical. float32 is
used because every inference engine supports it, but few engines have the same operators for integers or
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import paddle
from paddle import nn

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.deploy.in_graph.graph_numbers import arange, int64
from ppcls.deploy.in_graph.pillow import resize_like_pillow
from ppcls.deploy.in_graph.resampling_weights import divide
from ppcls.errors import UserError

Tensor = Any  # in a graph under construction
GraphOp = Callable[[Tensor], Tensor]

# axes of [N, H, W, C]
_HEIGHT = 1
_WIDTH = 2
_ONE = 2.0**11  # scale of OpenCV's weights


class PreprocessingLayer(nn.Layer):  # type: ignore[misc]
    """Layer that applies transforms to images [N, H, W, C] uint8 of any size.

    Args:
        specs: Transforms. The first one is DecodeImage, which the caller applies: the layer expects upright
            images in RGB order, whatever the settings of DecodeImage are.

    Attributes:
        reverses: Whether it reverses the channels.
        only_normalizes: Whether it only normalizes pixels, and may reverse their channels.

    Raises:
        UserError: A transform is not supported in a graph.
    """

    def __init__(self, specs: Sequence[Transform]) -> None:
        super().__init__()
        decoder = specs[0]
        if not isinstance(decoder, DecodeImage) or (decoder.channels, decoder.dtype) != (3, "uint8"):
            raise _not_supported(0, decoder, "the graph expects 8-bit RGB")
        self.reverses = not decoder.to_rgb
        self._ops: list[GraphOp] = [_reverse_channels] if self.reverses else []
        for position, spec in enumerate(specs[1:], start=1):
            try:
                op = graph_op(spec)
            except NotImplementedError as error:
                raise _not_supported(position, spec, str(error)) from None
            self._ops.append(op)
            if isinstance(op, nn.Layer):
                self.add_sublayer(spec.kind, op)
        self.only_normalizes = len(specs) == 2 and isinstance(self._ops[-1], _Normalization)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the prepared images, [N, C, H, W] or [N, H, W, C] float32."""
        images = images.astype("float32")  # few operators support uint8
        for op in self._ops:
            images = op(images)
        return images


def _not_supported(position: int, spec: Transform, reason: str) -> UserError:
    return UserError(
        f"Infer.transforms[{position}].{spec.kind}: cannot be part of the exported graph: {reason}; export "
        "without --preprocess, and prepare the images as inference.yml describes"
    )


@singledispatch
def graph_op(spec: Transform) -> GraphOp:
    """Returns the function that applies a transform to images [N, H, W, C] in a graph.

    The pixels are whole numbers before NormalizeImage.

    Raises:
        NotImplementedError: The transform is not supported in a graph.
    """
    raise NotImplementedError("this transform is not supported")


def _reverse_channels(images: Tensor) -> Tensor:
    # Not `arange`, whose length Paddle reads from the device, which a capture as a CUDA graph forbids.
    order = paddle.concat([int64(2), int64(1), int64(0)])
    return paddle.gather(images, order, axis=3)


@graph_op.register
def transpose_in_graph(spec: ToCHWImage) -> GraphOp:  # noqa: ARG001 - only its type is used
    """Returns a function that transposes images to [N, C, H, W]."""
    return lambda images: images.transpose([0, 3, 1, 2])


@graph_op.register
def normalize_in_graph(spec: NormalizeImage) -> GraphOp:
    """Returns a layer that normalizes images."""
    return _Normalization(spec)


class _Normalization(nn.Layer):  # type: ignore[misc]
    """Normalizes images. Each step computes in float32, as in `numpy_ops`."""

    def __init__(self, spec: NormalizeImage) -> None:
        super().__init__()
        self._scale = float(np.float32(spec.scale))
        self._spec = spec
        # Buffers are stored with the weights. A constant in forward would be copied to a GPU in each run.
        self.register_buffer("_mean", paddle.to_tensor(np.asarray(spec.mean, np.float32)))
        self.register_buffer("_std", paddle.to_tensor(np.asarray(spec.std, np.float32)))

    def forward(self, images: Tensor) -> Tensor:
        pixels = (images.astype("float32") * self._scale - self._mean) / self._std
        if self._spec.channel_num == 4:
            pixels = paddle.concat([pixels, paddle.zeros_like(pixels[:, :, :, :1])], axis=-1)
        return pixels.astype("float16").astype("float32") if self._spec.output_fp16 else pixels


@graph_op.register
def crop_in_graph(spec: CropImage) -> GraphOp:
    """Returns a function that crops the centre of images."""
    width, height = spec.size

    def crop(images: Tensor) -> Tensor:
        for axis, side in ((_HEIGHT, height), (_WIDTH, width)):
            start = (_length(images, axis) - int64(side)) // int64(2)
            images = paddle.gather(images, arange(side) + start, axis=axis)
        return images

    return crop


@graph_op.register
def resize_in_graph(spec: ResizeImage) -> GraphOp:
    """Returns a function that resizes images like OpenCV or Pillow."""
    if spec.interpolation == "nearest":
        raise NotImplementedError("interpolation: nearest is not supported")
    method = spec.interpolation

    def resize(images: Tensor) -> Tensor:
        height, width = _target_size(spec, images)
        if spec.backend == "pil":
            resized = resize_like_pillow(images, height, width, method)
        else:
            resized = _interpolate(images, height, width)
        if spec.size is None:
            return resized
        width, height = spec.size
        return resized.reshape([-1, height, width, 3])  # makes the size static for the model

    return resize


def _length(images: Tensor, axis: int) -> Tensor:
    """Returns the length of an axis as a scalar, int64."""
    return paddle.shape(images)[axis].astype("int64")


def _target_size(spec: ResizeImage, images: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the new height and width; see `ppcls.data.transforms.specs.basic.scale_to_short_side`."""
    height = _length(images, _HEIGHT)
    width = _length(images, _WIDTH)
    if spec.size is not None:
        zero = height - height  # prevents constant folding, which is wrong in Paddle Inference 3.3 on a CPU
        return zero + int64(spec.size[1])[0], zero + int64(spec.size[0])[0]
    assert spec.resize_short is not None
    shorter = paddle.minimum(height, width)
    twice = int64(2 * spec.resize_short)
    scaled = [(side * twice + shorter) // (shorter + shorter) for side in (height, width)]
    return scaled[0], scaled[1]


def _neighbours(length: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the neighbours of each new pixel for linear interpolation along an axis, and their weights.

    Returns:
        The index of the first neighbour, [side] int64, and the weight of the second neighbour, [side]
        float32.
    """
    twice = int64(2)
    centres = (twice * paddle.arange(side, dtype="int64") + int64(1)) * length
    quotient = divide(centres + side, twice * side)  # the position + 1, because positions can be negative
    positions = quotient.high - 1.0 + (quotient.middle + quotient.low)  # OpenCV rounds them to float32, too
    first = paddle.floor(positions)
    return first.astype("int64"), positions - first


def _weights(share: Tensor) -> tuple[Tensor, Tensor]:
    """Returns OpenCV's weights of both neighbours, as whole numbers in float32."""
    return _round((1.0 - share) * _ONE), _round(share * _ONE)


def _round(x: Tensor) -> Tensor:
    """Rounds numbers >= 0, halves to even numbers. Paddle's own rounding differs between engines."""
    up = paddle.floor(x + 0.5)
    odd = up - 2.0 * paddle.floor(up * 0.5)
    return up - odd * (up - x == 0.5).astype("float32")


def _clip_index(index: Tensor, length: Tensor) -> Tensor:
    """Returns the nearest index in 0..length - 1."""
    return paddle.minimum(paddle.maximum(index, int64(0)), length - int64(1))


def _interpolate(images: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Resizes images like OpenCV's INTER_LINEAR for 8-bit images."""
    rows = _length(images, _HEIGHT)
    columns = _length(images, _WIDTH)
    top, down = _neighbours(rows, height)
    left, right = _neighbours(columns, width)
    inside = paddle.logical_and(left >= int64(0), left < columns - int64(1)).astype("float32")
    near, far = (weights.reshape([1, 1, -1, 1]) for weights in _weights(right * inside))
    left, after = (_clip_index(index, columns) for index in (left, left + int64(1)))

    def resize_rows(index: Tensor) -> Tensor:
        """Returns the rows at ``index``, resized along the width, [N, height, width, C].

        The pixel values are multiplied by 128.
        """
        chosen = paddle.gather(images, _clip_index(index, rows), axis=_HEIGHT)
        first, second = (paddle.gather(chosen, columns, axis=_WIDTH) for columns in (left, after))
        return paddle.floor((first * near + second * far) * 2.0**-4)

    def scale(pixels: Tensor, weight: Tensor) -> Tensor:
        """Returns floor(pixels * weight / 2^16). All intermediate numbers fit into the 24 bits of float32."""
        high = paddle.floor(weight * 2.0**-6)
        low = weight - high * 2.0**6
        return paddle.floor((pixels * high + paddle.floor(pixels * low * 2.0**-6)) * 2.0**-10)

    upper, lower = (weights.reshape([1, -1, 1, 1]) for weights in _weights(down))
    total = scale(resize_rows(top), upper) + scale(resize_rows(top + int64(1)), lower)
    return paddle.floor((total + 2.0) * 0.25)

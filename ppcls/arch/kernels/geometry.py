"""The settings of a convolution, and the layers that the fused kernels can replace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddle import nn


@dataclass(frozen=True)
class Geometry:
    """The settings of a convolution.

    Attributes:
        padding: Number of zeros on each side (vertical, horizontal).
        stride: Stride (vertical, horizontal).
        dilation: Distance between elements of the kernel (vertical, horizontal).
        groups: Number of groups of channels.
    """

    padding: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def output_size(self, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Returns height and width of the output for the height and width of images and kernel."""
        height, width = (
            (side + 2 * pad - dilation * (size - 1) - 1) // stride + 1
            for side, pad, dilation, size, stride in zip(
                image, self.padding, self.dilation, kernel, self.stride, strict=True
            )
        )
        return height, width


def pair(value: Any) -> tuple[int, int]:
    """Returns a setting of a layer as (vertical, horizontal)."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def explicit_padding(layer: nn.Conv2D) -> tuple[int, int, int, int] | None:
    """Returns the zeros to add at the top, bottom, left and right; None if a layer pads in another way."""
    if layer._padding_mode != "zeros" or layer._padding_algorithm != "EXPLICIT":
        return None
    padding = layer._updated_padding
    if isinstance(padding, int):
        return (padding, padding, padding, padding)
    if len(padding) == 2:
        return (padding[0], padding[0], padding[1], padding[1])
    top, bottom, left, right = padding
    return (top, bottom, left, right)


def geometry(layer: nn.Conv2D) -> Geometry | None:
    """Returns the settings of a convolution; None if its padding differs on opposite sides."""
    padding = explicit_padding(layer)
    if padding is None or padding[0] != padding[1] or padding[2] != padding[3]:
        return None
    return Geometry((padding[0], padding[2]), pair(layer._stride), pair(layer._dilation), layer._groups)


def is_plain_norm(layer: nn.BatchNorm2D) -> bool:
    """Returns whether a layer normalizes NHWC images with learned factors, by the batch's statistics."""
    affine = layer.weight is not None and layer.bias is not None
    return affine and layer._data_format == "NHWC" and not layer._use_global_stats


def is_plain_pooling(layer: nn.MaxPool2D) -> bool:
    """Returns whether a layer pools square windows of NHWC images."""
    sides = layer.ksize, layer.stride, layer.padding
    square = all(isinstance(side, int) for side in sides)
    return square and layer.data_format == "NHWC" and not (layer.return_mask or layer.ceil_mode)

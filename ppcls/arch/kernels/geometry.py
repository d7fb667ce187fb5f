"""The settings of a convolution, and the layers that the fused kernels can replace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paddle import nn

from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    explicit_padding,
    groups_of,
    layout_of,
    stride_of,
    uses_running_statistics,
)


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


def geometry(layer: nn.Conv2D) -> Geometry | None:
    """Returns the settings of a convolution; None if its padding differs on opposite sides."""
    padding = explicit_padding(layer)
    if padding is None or padding[0] != padding[1] or padding[2] != padding[3]:
        return None
    return Geometry((padding[0], padding[2]), stride_of(layer), dilation_of(layer), groups_of(layer))


def is_plain_norm(layer: nn.BatchNorm2D) -> bool:
    """Returns whether a layer normalizes NHWC images with learned factors, by the batch's statistics."""
    affine = layer.weight is not None and layer.bias is not None
    return affine and layout_of(layer) == "NHWC" and not uses_running_statistics(layer)


def is_plain_pooling(layer: nn.MaxPool2D) -> bool:
    """Returns whether a layer pools square windows of NHWC images."""
    sides = layer.ksize, layer.stride, layer.padding
    square = all(isinstance(side, int) for side in sides)
    return square and layer.data_format == "NHWC" and not (layer.return_mask or layer.ceil_mode)

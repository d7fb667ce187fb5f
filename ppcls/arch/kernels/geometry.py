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
    output_size_of,
    stride_of,
    uses_running_statistics,
)


@dataclass(frozen=True)
class Geometry:
    """The settings of a convolution.

    Attributes:
        padding: Number of zeros (top, bottom, left, right).
        stride: Stride (vertical, horizontal).
        dilation: Distance between elements of the kernel (vertical, horizontal).
        groups: Number of groups of channels.
    """

    padding: tuple[int, int, int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def output_size(self, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Returns height and width of the output for the height and width of images and kernel."""
        top, bottom, left, right = self.padding
        sides = zip(image, (top + bottom, left + right), self.dilation, kernel, self.stride, strict=True)
        height, width = (
            (side + zeros - dilation * (size - 1) - 1) // stride + 1
            for side, zeros, dilation, size, stride in sides
        )
        return height, width

    @property
    def even(self) -> bool:
        """Whether opposite sides have the same padding."""
        top, bottom, left, right = self.padding
        return top == bottom and left == right


def geometry(layer: nn.Conv2D) -> Geometry | None:
    """Returns the settings of a convolution; None if it does not pad with a fixed number of zeros."""
    padding = explicit_padding(layer)
    if padding is None:
        return None
    return Geometry(padding, stride_of(layer), dilation_of(layer), groups_of(layer))


def is_plain_norm(layer: nn.BatchNorm2D) -> bool:
    """Returns whether a layer normalizes NHWC images with learned factors, by the batch's statistics."""
    affine = layer.weight is not None and layer.bias is not None
    return affine and layout_of(layer) == "NHWC" and not uses_running_statistics(layer)


def is_plain_pooling(layer: nn.MaxPool2D) -> bool:
    """Returns whether a layer pools square windows of NHWC images."""
    sides = layer.ksize, layer.stride, layer.padding
    square = all(isinstance(side, int) for side in sides)
    return square and layer.data_format == "NHWC" and not (layer.return_mask or layer.ceil_mode)


def is_mean_of_pixels(layer: nn.AdaptiveAvgPool2D) -> bool:
    """Returns whether a layer computes the means of all pixels of NHWC images."""
    return layout_of(layer) == "NHWC" and output_size_of(layer) == (1, 1)


def is_mean_of_squares(layer: nn.AvgPool2D) -> bool:
    """Returns whether a layer computes the means of squares of NHWC images that do not overlap."""
    plain = isinstance(layer.ksize, int) and layer.stride in (None, layer.ksize) and layer.padding == 0
    return plain and layer.data_format == "NHWC" and layer.divisor is None and not layer.ceil_mode

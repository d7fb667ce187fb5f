"""The settings of a convolution, and the layers that the fused kernels can replace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddle import Tensor, nn

from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    explicit_padding,
    groups_of,
    layout_of,
    output_size_of,
    stride_of,
    uses_running_statistics,
)

_LAYOUT = "the kernels need images in NHWC"


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


def find_convolution_problem(layer: nn.Conv2D) -> str | None:
    """Returns why a fused kernel can't replace a convolution; None if its shapes and dtypes decide."""
    if layout_of(layer) != "NHWC":
        return _LAYOUT
    if explicit_padding(layer) is None:
        return "the kernels need a padding with a given number of zeros"
    # A hook of the layer, such as that of `nn.utils.weight_norm`, may compute the weight in each call. Then
    # copies of it would be wrong, and so would be calls of other methods, which do not call the hook.
    if not any(parameter is layer.weight for parameter in layer.parameters(include_sublayers=False)):
        return "its weight is computed from other parameters"
    return None


def find_norm_problem(layer: nn.BatchNorm2D) -> str | None:
    """Returns why a fused kernel can't replace a batch norm; None if its shapes and dtypes decide."""
    if layout_of(layer) != "NHWC":
        return _LAYOUT
    if layer.weight is None or layer.bias is None:
        return "the kernels need a batch norm with learned factors"
    if uses_running_statistics(layer):
        return "the kernels normalize by the statistics of the batch in training"
    return None


def pooling_stride(layer: nn.MaxPool2D | nn.AvgPool2D) -> Any:
    """Returns the distance of the windows of a pooling, which is their size by default."""
    return layer.ksize if layer.stride is None else layer.stride


def find_max_pooling_problem(layer: nn.MaxPool2D) -> str | None:
    """Returns why a fused kernel can't replace a max pooling; None if its shapes and dtypes decide."""
    if layer.data_format != "NHWC":
        return _LAYOUT
    if not all(isinstance(side, int) for side in (layer.ksize, pooling_stride(layer), layer.padding)):
        return "the kernels need the same window, stride and padding in both directions"
    if layer.return_mask or layer.ceil_mode:
        return "the kernels have neither return_mask nor ceil_mode"
    return None


def window_fits(layer: nn.MaxPool2D, x: Tensor) -> bool:
    """Returns whether images [B, H, W, C] are at least as large as the windows of a max pooling of squares.

    For smaller images, oneDNN ends the process, and our kernel would be launched for no outputs.
    """
    return bool(layer.ksize <= min(x.shape[1:3]) + 2 * layer.padding)


def find_mean_problem(layer: nn.AdaptiveAvgPool2D) -> str | None:
    """Returns why a fused kernel can't replace the mean of an image's pixels; None if its shapes decide."""
    if layout_of(layer) != "NHWC":
        return _LAYOUT
    if output_size_of(layer) != (1, 1):
        return "the kernels compute one mean of all pixels"
    return None


def find_square_problem(layer: nn.AvgPool2D) -> str | None:
    """Returns why a fused kernel can't replace the means of squares; None if its shapes and dtypes decide."""
    if layer.data_format != "NHWC":
        return _LAYOUT
    if not isinstance(layer.ksize, int) or pooling_stride(layer) != layer.ksize or layer.padding != 0:
        return "the kernels need squares that do not overlap, without a padding"
    if layer.divisor is not None:  # `ceil_mode` adds nothing to images of whole squares, which are checked
        return "the kernels have no divisor_override"
    return None

"""Layers between the pixels of the same position in all patches of 2 x 2 pixels, as in MobileViT."""

from __future__ import annotations

from collections.abc import Callable

from paddle import Tensor
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat

# Axes of images split into patches: image, channels, patch row, row within, patch column, column within.
_SPLIT = {("NCHW", "NCHW"): [0, 1, 3, 5, 2, 4], ("NCHW", "NHWC"): [0, 3, 5, 2, 4, 1]}
_JOIN = {("NCHW", "NCHW"): [0, 1, 4, 2, 5, 3], ("NCHW", "NHWC"): [0, 5, 3, 1, 4, 2]}


def over_patches(
    layer: Callable[[Tensor], Tensor], x: Tensor, data_format: DataFormat, inner: DataFormat
) -> Tensor:
    """Applies ``layer`` to images of even sides, as [B, C, positions, patches].

    Args:
        layer: Layer whose output has the size of its input.
        x: Images [B, C, H, W] (or NHWC).
        data_format: Layout of the images.
        inner: Layout of the layer's input; NHWC is [B, positions, patches, C].
    """
    if data_format == "NHWC":
        height, width, channels = x.shape[1:]
        x = x.reshape([-1, height // 2, 2, width // 2, 2, channels]).transpose([0, 2, 4, 1, 3, 5])
    else:
        channels, height, width = x.shape[1:]
        x = x.reshape([-1, channels, height // 2, 2, width // 2, 2]).transpose(_SPLIT[data_format, inner])
    count = height * width // 4
    last = inner == "NHWC"
    x = layer(x.reshape([-1, 4, count, channels] if last else [-1, channels, 4, count]))
    grid = [2, 2, height // 2, width // 2]
    x = x.reshape([-1, *grid, channels] if last else [-1, channels, *grid])
    if data_format == "NHWC":
        return x.transpose([0, 3, 1, 4, 2, 5]).reshape([-1, height, width, channels])
    return x.transpose(_JOIN[data_format, inner]).reshape([-1, channels, height, width])


def resize(
    x: Tensor, size: tuple[int, int], data_format: DataFormat, mode: str = "bilinear", *, align: bool = False
) -> Tensor:
    """Returns images of another size, or the same ones if they have it."""
    if sides(x, data_format) == size:
        return x
    return F.interpolate(x, size, mode=mode, align_corners=align, data_format=data_format)


def sides(x: Tensor, data_format: DataFormat) -> tuple[int, int]:
    """Returns height and width of images."""
    height, width = x.shape[1:3] if data_format == "NHWC" else x.shape[2:]
    return height, width


def even(size: tuple[int, int]) -> tuple[int, int]:
    """Returns height and width rounded up to even numbers."""
    return size[0] + size[0] % 2, size[1] + size[1] % 2

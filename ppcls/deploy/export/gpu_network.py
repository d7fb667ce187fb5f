"""Converts networks to the form that Paddle Inference runs fastest on a GPU: NHWC, float16, no batch norm.

Paddle Inference can also convert an NCHW program when it loads it. But then cuDNN adds biases and shortcuts
in slow kernels, and images change their layout several times. In this form, Paddle uses neither these kernels
nor other layouts, and 1x1 convolutions are matrix products with bias and ReLU in one kernel. All operators
can be captured as a CUDA graph. docs/performance.md compares both.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.incubate.nn.functional import fused_linear_activation
from paddle.nn import functional as F

from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    explicit_padding,
    groups_of,
    layout_of,
    padding_argument,
    pads_zeros,
    stride_of,
)
from ppcls.arch.layers.conv_norm import ConvNorm, ImageConv2D
from ppcls.arch.layers.reparameterize import fold, numbers
from ppcls.outputs import Outputs, map_outputs

_CONVOLUTIONS = (
    nn.Conv1D,
    nn.Conv2D,
    nn.Conv3D,
    nn.Conv1DTranspose,
    nn.Conv2DTranspose,
    nn.Conv3DTranspose,
)
_IMAGE_CHANNELS = 4  # in half precision, cuDNN is slow with 3 channels


def has_gpu_form(network: nn.Layer) -> bool:
    """Returns whether `GpuNetwork` supports a network.

    The network must contain NHWC convolutions, and no normalization except that of `ConvNorm`. Grouped and
    depthwise convolutions are not supported, because Paddle's kernels for NHWC images are slow.
    """
    layers = network.sublayers()
    units = [layer for layer in layers if isinstance(layer, ConvNorm)]
    parts = {id(getattr(unit, name)) for unit in units for name in unit.names}
    others = [layer for layer in layers if id(layer) not in parts]
    convolutions = [layer for layer in layers if isinstance(layer, _CONVOLUTIONS)]
    return (
        bool(convolutions)
        and all(layout_of(layer) == "NHWC" and groups_of(layer) == 1 for layer in convolutions)
        and all(map(_is_foldable, units))
        and not any(type(layer).__module__ == nn.BatchNorm2D.__module__ for layer in others)
    )


class GpuNetwork(nn.Layer):  # type: ignore[misc]
    """A network in the form for GPUs. Its input and its outputs are float32.

    Args:
        network: NHWC network for which `has_gpu_form` is True. It is converted in place.
        dtype: Data type in which the network computes.
        transpose: Whether the input is NCHW, so that this layer must transpose it.
    """

    def __init__(self, network: nn.Layer, dtype: str = "float16", *, transpose: bool = False) -> None:
        super().__init__()
        self._inner_dtype = dtype
        self._transpose = transpose
        for layer in network.sublayers():
            if isinstance(layer, ConvNorm):
                _fold(layer)
        self.network = network
        self.network.to(dtype=dtype)
        self.network.eval()

    def forward(self, images: Tensor) -> Outputs:
        """Maps images [B, H, W, C] (or NCHW) float32 to the outputs of the network."""
        images = images.astype(self._inner_dtype)
        outputs = self.network(images.transpose([0, 2, 3, 1]) if self._transpose else images)
        return map_outputs(outputs, lambda output: output.astype("float32"))


def _is_foldable(unit: ConvNorm) -> bool:
    conv, norm = (getattr(unit, name) for name in unit.names)
    methods = ("forward", "fork", "add_relu")
    return (
        all(getattr(type(unit), name) is getattr(ConvNorm, name) for name in methods)
        and type(conv) in (nn.Conv2D, ImageConv2D)
        and pads_zeros(conv)
        and type(norm) is nn.BatchNorm2D
    )


def _fold(unit: Any) -> None:
    """Replaces the layers of a `ConvNorm` by a kernel and a bias."""
    conv, norm = (getattr(unit, name) for name in unit.names)
    kernel, bias = fold(numbers(conv.weight), norm)
    outputs, channels, height, width = kernel.shape
    if channels < _IMAGE_CHANNELS:
        kernel = np.pad(kernel, ((0, 0), (0, _IMAGE_CHANNELS - channels), (0, 0), (0, 0)))
    unit.pads = _IMAGE_CHANNELS - channels
    unit.is_product = height == width == 1 and stride_of(conv) == (1, 1) and not _pads_border(conv)
    if unit.is_product:
        kernel = kernel.reshape(outputs, -1).T
    for name in unit.names:
        delattr(unit, name)
    unit.kernel = _parameter(unit, kernel)
    unit.bias = _parameter(unit, bias)
    unit.geometry = list(stride_of(conv)), padding_argument(conv), list(dilation_of(conv))
    unit.forward = MethodType(_forward, unit)
    unit.fork = MethodType(_fork, unit)
    unit.add_relu = MethodType(_add_relu, unit)


def _pads_border(conv: nn.Conv2D) -> bool:
    padding = explicit_padding(conv)
    return padding is None or any(padding)


def _parameter(layer: nn.Layer, value: Any) -> paddle.Tensor:
    initial = nn.initializer.Assign(value.astype(np.float32))
    return layer.create_parameter(list(value.shape), paddle.ParamAttr(initializer=initial), dtype="float32")


def _forward(unit: Any, x: Tensor) -> Tensor:
    if unit._act is F.relu:
        return _convolve(unit, x, relu=True)
    y = _convolve(unit, x, relu=False)
    return y if unit._act is None else unit._act(y)


def _fork(unit: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return unit(x), x


def _add_relu(unit: Any, x: Tensor, shortcut: Tensor) -> Tensor:
    return F.relu(_convolve(unit, x, relu=False) + shortcut)


def _convolve(unit: Any, x: Tensor, *, relu: bool) -> Tensor:
    """Returns the convolution with bias, or its ReLU."""
    if unit.pads > 0:
        x = paddle.concat([x, paddle.zeros_like(x[:, :, :, : unit.pads])], axis=3)
    if unit.is_product and paddle.device.get_device().startswith("gpu"):  # the fused operator needs a GPU
        return fused_linear_activation(x, unit.kernel, unit.bias, activation="relu" if relu else None)
    if unit.is_product:
        y = paddle.matmul(x, unit.kernel)
    else:
        stride, padding, dilation = unit.geometry
        y = F.conv2d(x, unit.kernel, None, stride, padding, dilation, 1, "NHWC")
    y = y + unit.bias
    return F.relu(y) if relu else y

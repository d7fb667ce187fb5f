"""Makes a model use the fused kernels, without changes to its code, its parameters or their names."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.fused import batch_norm, convolution, max_pool
from ppcls.arch.fused.cuda import fills_vectors, kernels
from ppcls.arch.kernels.geometry import Geometry, is_plain_convolution, is_plain_norm, is_plain_pooling, pair
from ppcls.arch.layers.conv_norm import ImageConv2D

_CHANNELS = 4  # minimum number of image channels; in half precision, cuDNN is slower with 3


def check_available() -> None:
    """Checks that this machine can compile the kernels and load cuDNN.

    Raises:
        CudaUnavailableError: This machine lacks a library, or its GPU is not supported.
    """
    kernels("batch_norm.cu", paddle.float32)
    convolution.cudnn()


def fuse(model: nn.Layer) -> int:
    """Makes the NHWC convolutions, batch norms and max poolings of a model use the fused kernels.

    Batch norms use the kernels in training mode, and in evaluation mode if gradients are disabled. Frozen
    batch norms, which normalize with running statistics during training, do not change. Subclasses of
    Paddle's layers, which may compute something else, do not change either, except `ImageConv2D`.

    Returns:
        Number of convolutions and batch norms that were fused.
    """
    count = 0
    for layer in model.sublayers(include_self=True):
        if type(layer) in (nn.Conv2D, ImageConv2D) and is_plain_convolution(layer) and layer.bias is None:
            layer.forward = MethodType(_convolve, layer)
            layer.fork = MethodType(_fork, layer)
            count += 1
        elif type(layer) is nn.BatchNorm2D and is_plain_norm(layer):
            layer.forward = MethodType(_normalize, layer)
            layer.norm_relu = MethodType(_norm_relu, layer)
            count += 1
        elif type(layer) is nn.MaxPool2D and is_plain_pooling(layer):
            layer.forward = MethodType(_max_pool, layer)
    return count


def _operands(layer: nn.Conv2D, x: Tensor) -> tuple[Tensor, Tensor, Geometry]:
    """Returns the arguments of `convolution.convolve`, cast to the dtype of AMP if AMP is active."""
    weight = layer.weight
    dtype = _amp_dtype() or x.dtype
    missing = _CHANNELS - x.shape[-1]
    if missing > 0 and layer._groups == 1 and dtype != paddle.float32:
        x = _with_zeros(x, 3, missing)
        weight = _with_zeros(weight, 1, missing)
    padding, stride, dilation = map(pair, (layer._updated_padding, layer._stride, layer._dilation))
    return _cast(x, dtype), _cast(weight, dtype), Geometry(padding, stride, dilation, layer._groups)


def _with_zeros(tensor: Tensor, axis: int, count: int) -> Tensor:
    """Returns the tensor with ``count`` zeros appended along ``axis``."""
    shape = list(tensor.shape)
    shape[axis] = count
    return paddle.concat([tensor, paddle.zeros(shape, tensor.dtype)], axis=axis)


def _cast(tensor: Tensor, dtype: Any) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.astype(dtype)  # astype would copy even an equal dtype


def _amp_dtype() -> Any:
    """Returns the dtype of AMP (automatic mixed precision); None if AMP is off."""
    tracer = paddle.base.framework._dygraph_tracer()
    if tracer._amp_level == paddle.base.core.AmpLevel.O0:
        return None
    return getattr(paddle, tracer._amp_dtype)


def _convolve(layer: nn.Conv2D, x: Tensor) -> Tensor:
    return convolution.convolve(*_operands(layer, x))


def _fork(layer: nn.Conv2D, x: Tensor) -> tuple[Tensor, Tensor]:
    image, weight, geometry = _operands(layer, x)
    if x.stop_gradient or image is not x:
        return convolution.convolve(image, weight, geometry), x
    return convolution.convolve_fork(image, weight, geometry)


def _normalize(layer: nn.BatchNorm2D, x: Tensor) -> Tensor:
    if (kernel := find_kernel(layer, x)) is None:
        return nn.BatchNorm2D.forward(layer, x)
    return kernel(layer, x, relu=False)


def _norm_relu(layer: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None) -> Tensor:
    if (kernel := find_kernel(layer, x)) is None:
        x = nn.BatchNorm2D.forward(layer, x)
        return F.relu(x if shortcut is None else x + shortcut)
    return kernel(layer, x, None if shortcut is None else _cast(shortcut, x.dtype))


def find_kernel(layer: nn.BatchNorm2D, x: Tensor) -> Callable[..., Tensor] | None:
    """Returns the fused function for a layer and its images; None if the layer must use Paddle's operators.

    With gradients enabled, for example for heat maps, layers in evaluation mode use Paddle's operators.
    """
    if not fills_vectors(x.shape[-1], x.dtype) or layer.weight.dtype != paddle.float32:
        return None
    if layer.training:
        return batch_norm.batch_norm
    return None if paddle.is_grad_enabled() else batch_norm.normalize


def _max_pool(layer: nn.MaxPool2D, x: Tensor) -> Tensor:
    if not fills_vectors(x.shape[-1], x.dtype):
        return type(layer).forward(layer, x)
    return max_pool.max_pool(x, layer.ksize, layer.stride, layer.padding)

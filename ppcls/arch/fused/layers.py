"""Makes a model use the fused kernels, without changes to its code, its parameters or their names.

Decisions:
- Methods of existing layers are replaced, not the layers: other layers would change the names of parameters,
  which checkpoints and `Optimizer.by_name` use, and architectures would have to know the kernels.
- Each call checks shapes and dtypes, and uses Paddle's operator if no kernel supports them. So a model may
  have layers of any kind, and the kernels only have to support what is common. The log has a line about each
  kind of layer that uses Paddle's operators (`ppcls.arch.kernels.fallback`).
- The exact type of a layer is compared, because a subclass may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.fused import batch_norm, convolution, folded, linear, max_pool, mean_pool
from ppcls.arch.fused.amp import cast, compute_dtype, rounded
from ppcls.arch.fused.cuda import find_vector_problem, kernels, with_zeros
from ppcls.arch.fused.depthwise import Window, convolve_depthwise
from ppcls.arch.fused.depthwise import supports as supports_depthwise
from ppcls.arch.fused.pixels import widen
from ppcls.arch.fused.token_layers import fuse_tokens
from ppcls.arch.kernels.fallback import report, report_unchanged
from ppcls.arch.kernels.geometry import (
    Geometry,
    find_convolution_problem,
    find_max_pooling_problem,
    find_mean_problem,
    find_norm_problem,
    find_square_problem,
    geometry,
    pooling_stride,
    window_fits,
)
from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    explicit_padding,
    groups_of,
    padding_argument,
    stride_of,
)
from ppcls.arch.layers.conv_norm import ImageConv2D


def check_available() -> None:
    """Checks that this machine can compile the kernels and load cuDNN and cuBLAS.

    Raises:
        CudaUnavailableError: This machine lacks a library, or its GPU is not supported.
    """
    kernels("batch_norm.cu", paddle.float32)
    convolution.cudnn()
    linear.cublas()


def fuse(model: nn.Layer) -> int:
    """Makes the layers of a model use the fused kernels.

    These are NHWC convolutions, batch norms, max poolings and means of squares or of all pixels, and the
    layers of `fuse_tokens`. Batch norms use the kernels in training mode, and in evaluation mode if gradients
    are disabled. Frozen batch norms, which normalize with running statistics during training, do not change.
    Subclasses of Paddle's layers, which may compute something else, do not change either, except
    `ImageConv2D`. Within `ppcls.arch.fused.folded.constant_weights`, convolutions and the batch norms after
    them are one kernel.

    Returns:
        Number of layers that were fused, without linear layers.
    """
    count = 0
    for layer in model.sublayers(include_self=True):
        if type(layer) in (nn.Conv2D, ImageConv2D) and find_convolution_problem(layer) is None:
            layer.forward = MethodType(_convolve, layer)
            layer.folded = folded.OrderedWeight(layer)
            if layer.bias is None:
                layer.fork = MethodType(_fork, layer)
            count += 1
        elif type(layer) is nn.BatchNorm2D and find_norm_problem(layer) is None:
            layer.forward = MethodType(_normalize, layer)
            layer.norm_relu = MethodType(_norm_relu, layer)
            layer.norm_activate = MethodType(_norm_activate, layer)
            count += 1
        elif type(layer) is nn.MaxPool2D and find_max_pooling_problem(layer) is None:
            layer.forward = MethodType(_max_pool, layer)
        elif type(layer) is nn.AvgPool2D and find_square_problem(layer) is None:
            layer.forward = MethodType(_pool_squares, layer)
        elif type(layer) is nn.AdaptiveAvgPool2D and find_mean_problem(layer) is None:
            layer.forward = MethodType(_mean_pool, layer)
    for layer in model.sublayers(include_self=True):
        for first, norm in _pairs(layer):
            if "forward" in vars(first) and "forward" in vars(norm):  # both are fused
                folded.attach(first, norm)
    count += fuse_tokens(model)
    report_unchanged(model)
    return count


def _pairs(layer: nn.Layer) -> list[tuple[nn.Layer, nn.Layer]]:
    """Returns the convolutions of a layer, each with the batch norm that always follows it."""
    pairs = getattr(layer, "convolutions_and_norms", None)
    return [] if pairs is None else pairs()


def _convolve(layer: nn.Conv2D, x: Tensor) -> Tensor:
    """Computes a convolution by the first of our kernels and libraries that supports it."""
    dtype = compute_dtype(x)
    padding = explicit_padding(layer)
    assert padding is not None  # checked by `fuse`
    weight = layer.weight
    stride = stride_of(layer)
    plain = dilation_of(layer) == (1, 1)
    depthwise = 1 < groups_of(layer) == x.shape[-1]
    if depthwise and plain and supports_depthwise(weight.shape, stride, x.shape[-1], dtype):
        return convolve_depthwise(cast(x, dtype), weight, layer.bias, Window(stride[0], padding))
    if plain and groups_of(layer) == 1 and not any(padding) and _splits_into_patches(layer, x, dtype):
        return _multiply_patches(layer, cast(x, dtype))
    if depthwise:  # cuDNN's are slower
        _report_convolution(x, weight.shape, "the kernels have no such depthwise convolution")
        return _convolve_in_nchw(layer, cast(x, dtype))
    if (operands := _cudnn_operands(layer, x, dtype)) is None:
        return type(layer).forward(layer, x)
    ordered = vars(layer).get("folded")
    image, channels, settings = operands
    if ordered is None or not ordered.usable:
        y = convolution.convolve(image, _widened_weight(layer, channels, dtype), settings)
    else:
        (kernel,) = ordered.get((dtype, channels))
        y = convolution.convolve_ordered(image, kernel, settings)
    return y if layer.bias is None else y + rounded(layer.bias, dtype)


def _convolve_in_nchw(layer: nn.Conv2D, x: Tensor) -> Tensor:
    """Computes a convolution of NHWC images by Paddle's operator in NCHW.

    A CUDA graph can't replay Paddle's depthwise convolution in NHWC, see `ppcls.arch.kernels.capture`.
    """
    bias = None if layer.bias is None else rounded(layer.bias, x.dtype)
    y = F.conv2d(
        x.transpose([0, 3, 1, 2]),
        rounded(layer.weight, x.dtype),
        bias,
        stride_of(layer),
        padding_argument(layer),
        dilation_of(layer),
        groups_of(layer),
        "NCHW",
    )
    return y.transpose([0, 2, 3, 1])


def _fork(layer: nn.Conv2D, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the result of `_convolve`, and ``x`` for a second consumer."""
    dtype = compute_dtype(x)
    if (
        x.stop_gradient
        or x.dtype != dtype
        or x.shape[-1] < convolution.IMAGE_CHANNELS
        or groups_of(layer) == x.shape[-1]
    ):
        return _convolve(layer, x), x
    if (operands := _cudnn_operands(layer, x, dtype)) is None:
        return type(layer).forward(layer, x), x
    image, channels, settings = operands
    return convolution.convolve_fork(image, _widened_weight(layer, channels, dtype), settings)


def _cudnn_operands(layer: nn.Conv2D, x: Tensor, dtype: Any) -> tuple[Tensor, int, Geometry] | None:
    """Returns images, channels of the weights and settings; None if cuDNN does not support the convolution.

    Images and weights can have more channels than the layer, whose values are zeros.
    """
    settings = geometry(layer)
    assert settings is not None  # checked by `fuse`
    if not settings.even:
        _report_convolution(x, layer.weight.shape, "cuDNN needs the same padding at opposite sides")
        return None
    outputs, channels, *sides = layer.weight.shape
    missing = 0
    if groups_of(layer) == 1 and dtype != paddle.float32:
        missing = convolution.missing_channels(layer.weight.shape, gradients=paddle.is_grad_enabled())
    if missing > 0:
        x = widen(cast(x, dtype), x.shape[-1] + missing)
    shape = (outputs, channels + missing, *sides)
    problem = convolution.find_problem(tuple(x.shape), shape, dtype, settings)
    if problem is not None:
        _report_convolution(x, shape, problem)
        return None
    return cast(x, dtype), channels + missing, settings


def _widened_weight(layer: nn.Conv2D, channels: int, dtype: Any) -> Tensor:
    """Returns the weights of a convolution in a dtype, with zeros up to a number of channels."""
    if missing := channels - layer.weight.shape[1]:
        return with_zeros(rounded(layer.weight, dtype), 1, missing)
    return rounded(layer.weight, dtype)


def _report_convolution(x: Tensor, weight: Sequence[int], problem: str) -> None:
    # Without the size of the images, which may change during a run
    report(f"a convolution of {x.shape[-1]} channels with weights {list(weight)}", problem)


def _splits_into_patches(layer: nn.Conv2D, x: Tensor, dtype: Any) -> bool:
    """Returns whether a convolution is a linear layer on patches that do not overlap, and cuBLAS supports it.

    Without a bias, cuDNN is as fast for 1x1 kernels, and can add gradients.
    """
    outputs, channels, height, width = layer.weight.shape
    fits = stride_of(layer) == (height, width)
    whole = x.shape[1] % height == 0 and x.shape[2] % width == 0
    useful = height * width > 1 or layer.bias is not None
    return (
        fits and whole and useful and linear.find_problem(height * width * channels, outputs, dtype) is None
    )


def _multiply_patches(layer: nn.Conv2D, x: Tensor) -> Tensor:
    _, channels, height, width = layer.weight.shape
    rows, columns = x.shape[1] // height, x.shape[2] // width
    if height * width > 1:
        x = x.reshape([-1, rows, height, columns, width, channels]).transpose([0, 1, 3, 2, 4, 5])
    patches = x.reshape([-1, rows, columns, height * width * channels])
    return linear.multiply(patches, layer.weight, layer.bias)


def _normalize(layer: nn.BatchNorm2D, x: Tensor) -> Tensor:
    if (kernel := find_kernel(layer, x)) is None:
        return nn.BatchNorm2D.forward(layer, x)
    return kernel(layer, x)


def _norm_relu(layer: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None) -> Tensor:
    if (kernel := find_kernel(layer, x)) is None:
        x = nn.BatchNorm2D.forward(layer, x)
        return F.relu(x if shortcut is None else x + shortcut)
    if shortcut is None:
        return kernel(layer, x, None, "relu")
    return kernel(layer, x, cast(shortcut, x.dtype), "add_relu")


def _norm_activate(layer: nn.BatchNorm2D, x: Tensor, act: Callable[[Tensor], Tensor] | None) -> Tensor:
    tail = batch_norm.TAILS.get(act)
    kernel = find_kernel(layer, x)
    if tail is not None and kernel is not None:
        return kernel(layer, x, None, tail)
    x = layer(x)
    return x if act is None else act(x)


def find_kernel(layer: nn.BatchNorm2D, x: Tensor) -> Callable[..., Tensor] | None:
    """Returns the fused function for a layer and its images; None if the layer must use Paddle's operators.

    With gradients enabled, for example for heat maps, layers in evaluation mode use Paddle's operators.
    """
    problem = find_vector_problem(x.shape[-1], x.dtype)
    if layer.weight.dtype != paddle.float32:
        problem = "the kernels need factors in float32"
    elif not layer.training and paddle.is_grad_enabled():
        problem = "in evaluation mode, the kernels have no gradients"
    if problem is not None:
        report("a batch norm", problem)
        return None
    return batch_norm.batch_norm if layer.training else batch_norm.normalize


def _max_pool(layer: nn.MaxPool2D, x: Tensor) -> Tensor:
    problem = max_pool.find_problem(layer.ksize, x.shape[-1], x.dtype)
    if not window_fits(layer, x):
        problem = "its window is larger than the images"
    if problem is not None:
        report("a max pooling", problem)
        return type(layer).forward(layer, x)
    return max_pool.max_pool(x, layer.ksize, pooling_stride(layer), layer.padding)


def _mean_pool(layer: nn.AdaptiveAvgPool2D, x: Tensor) -> Tensor:
    if (problem := find_vector_problem(x.shape[-1], x.dtype)) is not None:
        report("a mean of all pixels", problem)
        return type(layer).forward(layer, x)
    return mean_pool.mean_pool(x)


def _pool_squares(layer: nn.AvgPool2D, x: Tensor) -> Tensor:
    problem = find_vector_problem(x.shape[-1], x.dtype)
    if paddle.is_grad_enabled():
        problem = "the kernels have no gradients"
    elif x.shape[1] % layer.ksize or x.shape[2] % layer.ksize:
        problem = f"the kernels need images of whole squares of {layer.ksize} pixels"
    if problem is not None:
        report("an average pooling", problem)
        return type(layer).forward(layer, x)
    return mean_pool.pool_squares(x, layer.ksize)

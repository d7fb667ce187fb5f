"""Makes a model use oneDNN's layers, without changes to its code, its parameters or their names.

Decisions:
- oneDNN is called directly. Paddle's own convolutions on a CPU unfold each image. Its compiled programs with
  oneDNN end with a segmentation fault for many networks, and fall back without a message for our ResNet18.
- With these layers, a step of ResNet18 with one thread takes 960 instead of 3,120 ms (8 images of 224 px),
  and 130 instead of 550 ms (32 images of 32 px).
- The library is part of Paddle's package, so that nothing needs to be compiled or installed.
- Linear layers, products of matrices, permutations, softmax, layer norms and activations are replaced too,
  because transformers consist of them: see their modules for what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.kernels.fallback import report
from ppcls.arch.kernels.geometry import (
    find_max_pooling_problem,
    find_norm_problem,
    geometry,
    pooling_stride,
    window_fits,
)
from ppcls.arch.kernels.paddle_layers import epsilon_of, layout_of, normalized_axes
from ppcls.arch.layers.conv_norm import ImageConv2D
from ppcls.arch.layers.tokens import ChannelNorm
from ppcls.arch.layers.transformer import MatrixProduct, Permutation, Softmax
from ppcls.arch.onednn.activation import find_activation
from ppcls.arch.onednn.batch_norm import batch_norm, normalize
from ppcls.arch.onednn.convolution import convolve, convolve_packed
from ppcls.arch.onednn.layer_norm import layer_norm
from ppcls.arch.onednn.library import OneDnnUnavailableError
from ppcls.arch.onednn.linear import multiply, multiply_matrices
from ppcls.arch.onednn.max_pool import max_pool
from ppcls.arch.onednn.permutation import permute
from ppcls.arch.onednn.softmax import softmax

# Classes of Paddle that have oneDNN's layers, see `fuse`.
KINDS = (nn.Conv2D, nn.BatchNorm2D, nn.Linear, nn.LayerNorm, nn.MaxPool2D)


def fuse(model: nn.Layer, *, constant: bool = False) -> int:
    """Makes the layers of a model use oneDNN.

    These are NHWC convolutions, batch norms and max poolings, linear layers, layer norms, products of
    matrices, the softmax and the permutations of attention, and the activations after them.

    Args:
        model: The model.
        constant: Whether the weights do not change after the first forward pass, so that those of
            convolutions are reordered once.

    Returns:
        Number of convolutions, batch norms and products of matrices that were changed.
    """
    count = 0
    for layer in model.sublayers(include_self=True):
        if (act := find_activation(getattr(layer, "_act", None))) is not None:
            layer._act = act
        if type(layer) in (nn.Conv2D, ImageConv2D) and layout_of(layer) == "NHWC" and geometry(layer):
            _replace_forward(layer, _convolve_constant if constant else _convolve)
            count += 1
        elif type(layer) is nn.BatchNorm2D and find_norm_problem(layer) is None:
            _replace_forward(layer, _normalize)
            layer.norm_relu = MethodType(_norm_relu, layer)
            count += 1
        elif type(layer) is MatrixProduct:
            _replace_forward(layer, _multiply_matrices)
            count += 1
        elif type(layer) is nn.Linear:
            _replace_forward(layer, _linear)
        elif isinstance(layer, nn.LayerNorm) and _is_plain_layer_norm(layer):
            _replace_forward(layer, _normalize_tokens)
        elif isinstance(layer, Permutation):
            _replace_forward(layer, _permute)
        elif type(layer) is Softmax:
            _replace_forward(layer, _softmax)
        elif type(layer) is nn.MaxPool2D and find_max_pooling_problem(layer) is None:
            _replace_forward(layer, _max_pool)
    return count


def _replace_forward(layer: nn.Layer, forward: Callable[..., Tensor]) -> None:
    """Replaces the forward pass of a layer. If oneDNN does not support it, Paddle computes this layer."""

    def compute(layer: nn.Layer, *inputs: Tensor) -> Tensor:
        try:
            return forward(layer, *inputs)
        except OneDnnUnavailableError as error:
            report(type(layer).__name__, str(error))
            layer.forward = MethodType(type(layer).forward, layer)
            output: Tensor = layer.forward(*inputs)
            return output

    layer.forward = MethodType(compute, layer)


def _convolve(layer: nn.Conv2D, x: Tensor) -> Tensor:
    if x.dtype != paddle.float32:
        return nn.Conv2D.forward(layer, x)
    settings = geometry(layer)
    assert settings is not None  # checked by `fuse`
    return convolve(x, layer.weight, layer.bias, settings)


def _convolve_constant(layer: nn.Conv2D, x: Tensor) -> Tensor:
    if x.dtype != paddle.float32 or not x.size or paddle.is_grad_enabled():
        return _convolve(layer, x)
    settings = geometry(layer)
    assert settings is not None  # checked by `fuse`
    packed = vars(layer).get("packed_weight")
    output, layer.packed_weight = convolve_packed(x, layer.weight, layer.bias, settings, packed)
    return output


def _normalize(layer: nn.BatchNorm2D, x: Tensor) -> Tensor:
    return _norm(layer, x, relu=False)


def _norm(layer: nn.BatchNorm2D, x: Tensor, *, relu: bool) -> Tensor:
    if _trains(layer, x):
        return batch_norm(layer, x, relu=relu)
    if _infers(layer, x):
        return normalize(layer, x, relu=relu)
    x = nn.BatchNorm2D.forward(layer, x)
    return F.relu(x) if relu else x


def _norm_relu(layer: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None) -> Tensor:
    if shortcut is None:
        return _norm(layer, x, relu=True)
    infers = _infers(layer, x)
    x = _normalize(layer, x)
    if infers:  # nothing else has the normalized images, and new memory takes longer
        return F.relu_(x.add_(shortcut))
    return F.relu(x + shortcut)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    if x.dtype != paddle.float32 or not x.size:
        return nn.Linear.forward(layer, x)
    return multiply(x, layer.weight, layer.bias)


def _multiply_matrices(layer: MatrixProduct, x: Tensor, y: Tensor) -> Tensor:
    equal = x.shape[:-2] == y.shape[:-2]  # without broadcasting, which few networks need
    if not equal or x.dtype != paddle.float32 or y.dtype != paddle.float32:
        return MatrixProduct.forward(layer, x, y)
    return multiply_matrices(x, y, transposed=layer.transposed)


def _is_plain_layer_norm(layer: nn.LayerNorm) -> bool:
    """Returns whether a layer norm computes its statistics over the last axis, and has learned factors."""
    known = type(layer) is nn.LayerNorm or (type(layer) is ChannelNorm and layer.channels_last)
    return known and normalized_axes(layer) == 1 and layer.weight is not None and layer.bias is not None


def _normalize_tokens(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    if x.dtype != paddle.float32 or not x.size:
        return type(layer).forward(layer, x)
    return layer_norm(x, layer.weight, layer.bias, epsilon_of(layer))


def _permute(layer: Permutation, x: Tensor) -> Tensor:
    if x.dtype != paddle.float32 or not x.size:
        return Permutation.forward(layer, x)
    return permute(x, layer.axes)


def _softmax(layer: Softmax, x: Tensor) -> Tensor:
    if x.dtype != paddle.float32 or not x.size:
        return Softmax.forward(layer, x)
    return softmax(x)


def _trains(layer: nn.BatchNorm2D, x: Tensor) -> Any:
    # Paddle does not normalize a single pixel, of one image.
    return layer.training and x.dtype == paddle.float32 and x.size > x.shape[-1]


def _infers(layer: nn.BatchNorm2D, x: Tensor) -> bool:
    return not layer.training and x.dtype == paddle.float32 and bool(x.size) and not paddle.is_grad_enabled()


def _max_pool(layer: nn.MaxPool2D, x: Tensor) -> Tensor:
    if x.dtype != paddle.float32 or not window_fits(layer, x):
        return nn.MaxPool2D.forward(layer, x)
    return max_pool(x, layer.ksize, pooling_stride(layer), layer.padding)

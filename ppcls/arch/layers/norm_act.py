"""BatchNorm, addition and ReLU as one fused operator, if Paddle can train with such an operator.

In ResNet-50, these three operations read and write more memory than all convolutions. cuDNN has fused kernels
for NHWC float16 images. In Paddle 2.6, only compiled models can use the fused kernels. In eager mode, their
gradient fails with the error "Mean and MeanOut should share the same memory" or with a crash.
"""

from __future__ import annotations

from collections.abc import Callable

import paddle
from paddle import Tensor, nn
from paddle.base.layer_helper import LayerHelper
from paddle.nn import functional as F

from ppcls.arch.kernels.paddle_layers import (
    epsilon_of,
    layout_of,
    momentum_of,
    running_statistics,
    uses_running_statistics,
)


def norm_relu(norm: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """Returns ``relu(norm(x) + shortcut)``, or ``relu(norm(x))`` without a shortcut.

    Args:
        norm: Batch norm layer, whose running statistics are updated in training mode.
        x: [B, C, H, W] or [B, H, W, C], in the layout of ``norm``.
        shortcut: Tensor with the shape of ``x`` to add; None for no addition.
    """
    if (kernel := getattr(norm, "norm_relu", None)) is not None:  # set by ppcls.arch.fused
        return kernel(x, shortcut)
    if fuses(norm, x, shortcut):
        return _fused(norm, x, shortcut)
    x = norm(x)
    return F.relu(x if shortcut is None else x + shortcut)


def norm_activate(norm: nn.BatchNorm2D, x: Tensor, act: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Returns ``act(norm(x))``, or ``norm(x)`` if ``act`` is None. See `norm_relu`."""
    if act is F.relu:
        return norm_relu(norm, x)
    if (kernel := getattr(norm, "norm_activate", None)) is not None:  # set by ppcls.arch.fused
        return kernel(x, act)
    x = norm(x)
    return x if act is None else act(x)


def activate(
    norm: nn.BatchNorm2D, x: Tensor, act: Callable[[Tensor], Tensor] | None, shortcut: Tensor | None
) -> Tensor:
    """Returns ``act(norm(x) + shortcut)``. If there is a shortcut, ``act`` must be ``F.relu``."""
    return norm_activate(norm, x, act) if shortcut is None else norm_relu(norm, x, shortcut)


def convolve_norm(
    convolution: nn.Layer,
    norm: nn.BatchNorm2D,
    x: Tensor,
    act: Callable[[Tensor], Tensor] | None,
    shortcut: Tensor | None = None,
) -> Tensor:
    """Returns ``act(norm(convolution(x)) + shortcut)``.

    While the weights do not change, `ppcls.arch.fused.folded` can compute all of it by one kernel.

    Args:
        convolution: Convolution, or a layer that contains nothing else.
        norm: Batch norm of its output.
        x: [B, C, H, W] or [B, H, W, C], in the layout of the layers.
        act: Activation; None for none. Must be ``F.relu`` if there is a shortcut.
        shortcut: Tensor to add before the activation; None for no addition.
    """
    folded = getattr(norm, "folded", None)  # set by ppcls.arch.fused
    if folded is not None and folded.supports(x, act, shortcut):
        return folded.run(x, act, shortcut)
    return activate(norm, convolution(x), act, shortcut)


def expect_float16(model: nn.Layer) -> None:
    """Sets ``float16_expected`` on BatchNorm layers, so that compiled models use fused operators with AMP O1.

    The attribute is necessary because Paddle casts a program after building it. While operators are selected,
    the tensors are still float32.
    """
    for layer in model.sublayers():
        if isinstance(layer, nn.BatchNorm2D):
            layer.float16_expected = True


def fuses(norm: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None) -> bool:
    """Returns whether a fused operator exists: for NHWC float16 on a GPU, in programs of Paddle 2.6."""
    # AMP supports only the fused operator with an addition.
    half = x.dtype == paddle.float16 or (shortcut is not None and getattr(norm, "float16_expected", False))
    return (
        not paddle.in_dynamic_mode()
        and not paddle.framework.in_pir_mode()
        and type(norm) is nn.BatchNorm2D
        and norm.training
        and not uses_running_statistics(norm)  # as frozen layers do
        and layout_of(norm) == "NHWC"
        and half
        and paddle.is_compiled_with_cuda()
    )


def _fused(norm: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None) -> Tensor:
    kind = "fused_batch_norm_act" if shortcut is None else "fused_bn_add_activation"
    helper = LayerHelper(kind)
    out = helper.create_variable_for_type_inference(x.dtype)
    mean, deviation, reserve = (
        helper.create_variable_for_type_inference(dtype, stop_gradient=True)
        for dtype in (norm.weight.dtype, norm.weight.dtype, x.dtype)
    )
    running_mean, running_variance = running_statistics(norm)
    inputs = {
        "X": x,
        "Scale": norm.weight,
        "Bias": norm.bias,
        "Mean": running_mean,
        "Variance": running_variance,
    }
    helper.append_op(
        type=kind,
        inputs=inputs if shortcut is None else {**inputs, "Z": shortcut},
        outputs={
            "Y": out,
            "MeanOut": running_mean,
            "VarianceOut": running_variance,
            "SavedMean": mean,
            "SavedVariance": deviation,
            "ReserveSpace": reserve,
        },
        attrs={"momentum": momentum_of(norm), "epsilon": epsilon_of(norm), "act_type": "relu"},
    )
    return out

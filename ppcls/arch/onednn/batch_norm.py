"""BatchNorm of NHWC float32 images on a CPU, with an optional ReLU in the same pass over memory."""

from __future__ import annotations

import ctypes
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from ppcls.arch.kernels.paddle_layers import epsilon_of, momentum_of, running_statistics
from ppcls.arch.onednn.library import (
    NHWC,
    Argument,
    Primitive,
    describe_primitive,
    keep_primitives,
    library,
    tensor_format,
)

_TRAINING = 64  # dnnl_forward_training
_INFERENCE = 96  # dnnl_forward_inference
_BACKWARD = 128  # dnnl_backward: gradients of images and parameters
_GLOBAL_STATISTICS = 1  # dnnl_use_global_stats
_SCALE_AND_SHIFT = 2 | 4  # dnnl_use_scale | dnnl_use_shift
_FUSED_RELU = 8  # dnnl_fuse_norm_relu


def batch_norm(norm: nn.BatchNorm2D, x: Tensor, *, relu: bool) -> Tensor:
    """Returns ``norm(x)`` or ``relu(norm(x))``, and updates the running statistics.

    Args:
        norm: Layer in training mode.
        x: [B, H, W, C] float32.
        relu: Whether to apply ReLU.
    """
    output: Tensor = _CpuBatchNorm.apply(x.contiguous(), norm.weight, norm.bias, norm, relu)
    return output


def normalize(norm: nn.BatchNorm2D, x: Tensor, *, relu: bool) -> Tensor:
    """Returns ``norm(x)`` or ``relu(norm(x))`` by the running statistics, without gradients.

    Args:
        norm: Layer in evaluation mode.
        x: [B, H, W, C] float32.
        relu: Whether to apply ReLU.
    """
    x = x.contiguous()
    y = paddle.empty(x.shape)
    mean, variance = running_statistics(norm)
    tensors = {Argument.SOURCE: x, Argument.TARGET: y, Argument.MEAN: mean, Argument.VARIANCE: variance}
    tensors |= {Argument.SCALE: norm.weight, Argument.SHIFT: norm.bias}
    _inference_primitive(tuple(x.shape), epsilon_of(norm), relu).run(tensors)
    return y


@keep_primitives
def _inference_primitive(image: tuple[int, ...], epsilon: float, relu: bool) -> Primitive:
    batch, height, width, channels = image
    x = tensor_format([batch, channels, height, width], NHWC)
    vector = tensor_format([channels], "a")
    flags = _GLOBAL_STATISTICS | _SCALE_AND_SHIFT | (_FUSED_RELU if relu else 0)
    rule = (ctypes.c_float(epsilon), flags)
    description = describe_primitive("batch_normalization_forward", _INFERENCE, x, x, *rule)
    vectors = (Argument.MEAN, Argument.VARIANCE, Argument.SCALE, Argument.SHIFT)
    return Primitive(description, {Argument.SOURCE: x, Argument.TARGET: x, **dict.fromkeys(vectors, vector)})


class _CpuBatchNorm(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(
        context: Any, x: Tensor, gamma: Tensor, beta: Tensor, norm: nn.BatchNorm2D, relu: bool
    ) -> Tensor:
        context.plan = _plan(tuple(x.shape), epsilon_of(norm), relu)
        context.needed = [not tensor.stop_gradient for tensor in (x, gamma, beta)]
        output, mean, variance, mask = context.plan.forward(x, gamma, beta)
        momentum = momentum_of(norm)
        for running, current in zip(running_statistics(norm), (mean, variance), strict=True):
            running.scale_(momentum).add_(current * (1.0 - momentum))
        context.save_for_backward(x, gamma, mean, variance, mask)
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = context.plan.backward(gradient.contiguous(), *context.saved_tensor())
        pairs = zip(context.needed, gradients, strict=True)
        return tuple(tensor if needed else None for needed, tensor in pairs)


class _NormPrimitives:
    """The primitives of a batch norm for images of one size."""

    def __init__(self, image: tuple[int, ...], epsilon: float, relu: bool) -> None:
        batch, height, width, channels = image
        self._shape = list(image)
        x = tensor_format([batch, channels, height, width], NHWC)
        vector = tensor_format([channels], "a")
        flags = _SCALE_AND_SHIFT | (_FUSED_RELU if relu else 0)
        rule = (ctypes.c_float(epsilon), flags)
        description = describe_primitive("batch_normalization_forward", _TRAINING, x, x, *rule)
        workspace = library().query_format(description, Argument.WORKSPACE)
        self._mask = library().size(workspace) if relu else 1
        shared = dict.fromkeys((Argument.MEAN, Argument.VARIANCE, Argument.SCALE), vector)
        if relu:
            shared[Argument.WORKSPACE] = workspace
        formats = {Argument.SOURCE: x, Argument.TARGET: x, Argument.SHIFT: vector, **shared}
        self._forward = Primitive(description, formats)
        operands = (_BACKWARD, x, x, x, *rule, description)
        description = describe_primitive("batch_normalization_backward", *operands)
        formats = {
            Argument.SOURCE: x,
            Argument.SOURCE_GRADIENT: x,
            Argument.TARGET_GRADIENT: x,
            Argument.SCALE_GRADIENT: vector,
            Argument.SHIFT_GRADIENT: vector,
            **shared,
        }
        self._backward = Primitive(description, formats)

    def forward(self, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the output, mean and biased variance [C], and oneDNN's record of ReLU's signs."""
        channels = self._shape[-1]
        y = paddle.empty(self._shape)
        mean = paddle.empty([channels])
        variance = paddle.empty([channels])
        mask = paddle.empty([self._mask], "uint8")
        self._forward.run(
            {
                Argument.SOURCE: x,
                Argument.TARGET: y,
                Argument.MEAN: mean,
                Argument.VARIANCE: variance,
                Argument.SCALE: gamma,
                Argument.SHIFT: beta,
                Argument.WORKSPACE: mask,
            }
        )
        return y, mean, variance, mask

    def backward(self, gradient: Tensor, x: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of images, gamma and beta.

        Args:
            gradient: Gradient of the output.
            x: Images.
            saved: Gamma, and the last three results of `forward`.
        """
        gamma, mean, variance, mask = saved
        dx = paddle.empty(self._shape)
        dgamma = paddle.empty_like(gamma)
        dbeta = paddle.empty_like(gamma)
        self._backward.run(
            {
                Argument.SOURCE: x,
                Argument.SOURCE_GRADIENT: dx,
                Argument.TARGET_GRADIENT: gradient,
                Argument.MEAN: mean,
                Argument.VARIANCE: variance,
                Argument.SCALE: gamma,
                Argument.SCALE_GRADIENT: dgamma,
                Argument.SHIFT_GRADIENT: dbeta,
                Argument.WORKSPACE: mask,
            }
        )
        return dx, dgamma, dbeta


_plan = keep_primitives(_NormPrimitives)

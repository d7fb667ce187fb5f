"""Convolutions of NHWC float32 images on a CPU. Weights have the same order as in Paddle.

Decisions:
- For 1x1 kernels with a stride and few channels, oneDNN's gradient of the weights writes beyond the end of
  its scratchpad (https://github.com/uxlfoundation/oneDNN/issues/6035), which ends the process sooner or
  later. It is computed without a stride instead, from the pixels that the kernel reads.
- For images of one channel, a horizontal stride and outputs that are one pixel wide, as of spectrograms whose
  kernel covers all frequencies, oneDNN 3.6 does not write all outputs. Paddle computes these layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.kernels.geometry import Geometry
from ppcls.arch.onednn.library import (
    NHWC,
    Argument,
    Handle,
    OneDnnUnavailableError,
    Primitive,
    Reorder,
    describe_primitive,
    integers,
    keep_primitives,
    library,
    tensor_format,
)

_TRAINING = 64  # dnnl_forward_training
_DIRECT = 1  # dnnl_convolution_direct
_BLOCK = 16  # largest number of channels that oneDNN processes together, with AVX-512


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Returns the convolution of NHWC images.

    Args:
        x: [B, H, W, C] float32.
        weight: [C', C / groups, KH, KW] float32.
        bias: [C'] float32; None for no bias.
        geometry: Padding, stride, dilation and groups.
    """
    output: Tensor
    if bias is None:
        output = _CpuConvolution.apply(x.contiguous(), weight.contiguous(), geometry)
    else:
        output = _CpuBiasedConvolution.apply(x.contiguous(), weight.contiguous(), bias, geometry)
    return output


@dataclass(frozen=True)
class PackedWeight:
    """Weights in the order of a primitive.

    Attributes:
        values: The reordered weights.
        format: Memory format of the order.
    """

    values: Tensor
    format: Handle

    def __deepcopy__(self, _memo: object) -> None:
        """Returns None, so that a copy of a model, whose weights may change, reorders its weights again."""


def convolve_packed(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, packed: PackedWeight | None
) -> tuple[Tensor, PackedWeight]:
    """Returns the convolution like `convolve`, without gradients, and weights for the next call.

    A single image otherwise spends a fifth of its time on reordering the weights of ResNet50. Paddle 3.3.1
    does not count changes of weights (``inplace_version`` stays 0), so the caller must exclude them.

    Args:
        x: See `convolve`.
        weight: See `convolve`.
        bias: See `convolve`.
        geometry: See `convolve`.
        packed: Weights of the last call; None in the first call.
    """
    weight = weight.contiguous()
    plan = _plan(tuple(x.shape), tuple(weight.shape), geometry, bias is not None)
    packed = plan.pack(weight, packed)
    return plan.apply(x.contiguous(), packed.values, bias), packed


class _CpuConvolution(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `convolve` without a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        context.plan = _plan(tuple(x.shape), tuple(weight.shape), geometry, False)
        context.needed = [not tensor.stop_gradient for tensor in (x, weight)]
        context.save_for_backward(x, weight)
        output: Tensor = context.plan.forward(x, weight, None)
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, gradient.contiguous())


class _CpuBiasedConvolution(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `convolve` with a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
        context.plan = _plan(tuple(x.shape), tuple(weight.shape), geometry, True)
        context.needed = [not tensor.stop_gradient for tensor in (x, weight, bias)]
        context.save_for_backward(x, weight)
        output: Tensor = context.plan.forward(x, weight, bias)
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, gradient.contiguous())


def _gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Returns the gradients of images, weights and, if there is one, bias; None for those not needed."""
    x, weight = context.saved_tensor()
    dx = context.plan.input_gradient(gradient, weight) if context.needed[0] else None
    parameters = context.plan.parameter_gradients(x, gradient) if any(context.needed[1:]) else (None, None)
    others = (
        tensor if needed else None for needed, tensor in zip(context.needed[1:], parameters, strict=False)
    )
    return (dx, *others)


class _ConvolutionPrimitives:
    """The primitives of a convolution for images of one size.

    A primitive of oneDNN chooses the order of the weights in memory. In training, weights are reordered in
    each pass, because an update changes them.
    """

    def __init__(
        self, image: tuple[int, ...], weight: tuple[int, ...], geometry: Geometry, biased: bool
    ) -> None:
        batch, height, width, channels = image
        outputs = weight[0]
        rows, columns = geometry.output_size((height, width), weight[2:])
        if channels == columns == geometry.stride[0] == 1 < min(rows, geometry.stride[1]):
            raise OneDnnUnavailableError(
                f"oneDNN returns wrong outputs for one channel, stride {geometry.stride} and outputs that "
                "are one pixel wide"
            )
        self._input = [batch, height, width, channels]
        self._output = [batch, rows, columns, outputs]
        self._weight = list(weight)
        self._geometry = geometry
        grouped = [geometry.groups, outputs // geometry.groups, *weight[1:]]
        kernel = grouped if geometry.groups > 1 else self._weight
        self._x = tensor_format([batch, channels, height, width], NHWC)
        self._y = tensor_format([batch, outputs, rows, columns], NHWC)
        self._plain = tensor_format(kernel, "abcde"[: len(kernel)])
        self._any = tensor_format(kernel, None)
        self._bias = tensor_format([outputs], "a") if biased else None
        top, bottom, left, right = geometry.padding
        self._sides = (
            integers(geometry.stride),
            integers(side - 1 for side in geometry.dilation),
            integers([top, left]),
            integers([bottom, right]),
        )
        operands = (self._x, self._any, self._bias, self._y, *self._sides)
        self._description = describe_primitive("convolution_forward", _TRAINING, _DIRECT, *operands)
        chosen = library().query_format(self._description, Argument.WEIGHTS)
        formats = {Argument.SOURCE: self._x, Argument.WEIGHTS: chosen, Argument.TARGET: self._y}
        if self._bias is not None:
            formats[Argument.BIAS] = self._bias
        self._forward = Primitive(self._description, formats)
        self._chosen = chosen
        self._reorder = Reorder(self._plain, chosen)
        self._backward: tuple[Primitive, Reorder] | None = None
        self._parameters: tuple[Primitive, Reorder, Handle] | None = None

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the output [B, H', W', C']."""
        return self.apply(x, self._reorder.copy(weight), bias)

    def pack(self, weight: Tensor, packed: PackedWeight | None) -> PackedWeight:
        """Returns the reordered weights.

        Args:
            weight: Weights in Paddle's order.
            packed: Earlier result for the same weights, which is returned if it has the right order.
        """
        if packed is not None and library().equal(packed.format, self._chosen):
            return packed
        return PackedWeight(self._reorder.copy(weight), self._chosen)

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the output [B, H', W', C'] for reordered weights."""
        y = paddle.empty(self._output)
        tensors = {Argument.SOURCE: x, Argument.WEIGHTS: weight, Argument.TARGET: y}
        if bias is not None:
            tensors[Argument.BIAS] = bias
        self._forward.run(tensors)
        return y

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """Returns the gradient of the images."""
        if self._backward is None:
            self._backward = self._make_backward()
        primitive, reorder = self._backward
        dx = paddle.empty(self._input)
        primitive.run(
            {
                Argument.SOURCE_GRADIENT: dx,
                Argument.WEIGHTS: reorder.copy(weight),
                Argument.TARGET_GRADIENT: gradient,
            }
        )
        return dx

    def parameter_gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the gradients of the weights, in Paddle's order, and of the bias."""
        if self._overflows():
            down, right = self._geometry.stride
            x = x[:, ::down, ::right].contiguous()
            geometry = replace(self._geometry, stride=(1, 1))
            plan = _plan(tuple(x.shape), tuple(self._weight), geometry, self._bias is not None)
            return plan.parameter_gradients(x, gradient)
        if self._parameters is None:
            self._parameters = self._make_parameters()
        primitive, reorder, chosen = self._parameters
        computed = paddle.empty([library().size(chosen) // 4])
        tensors = {
            Argument.SOURCE: x,
            Argument.WEIGHTS_GRADIENT: computed,
            Argument.TARGET_GRADIENT: gradient,
        }
        bias = None
        if self._bias is not None:
            bias = tensors[Argument.BIAS_GRADIENT] = paddle.empty([self._weight[0]])
        primitive.run(tensors)
        return reorder.copy(computed).reshape(self._weight), bias

    def _overflows(self) -> bool:
        """Returns whether oneDNN's gradient of the weights writes beyond the end of its scratchpad."""
        strided = self._weight[2:] == [1, 1] and self._geometry.stride != (1, 1)
        whole = self._geometry.groups == 1 and not any(self._geometry.padding)
        return strided and whole and self._weight[1] < _BLOCK

    def _make_backward(self) -> tuple[Primitive, Reorder]:
        operands = (self._x, self._any, self._y, *self._sides, self._description)
        description = describe_primitive("convolution_backward_data", _DIRECT, *operands)
        chosen = library().query_format(description, Argument.WEIGHTS)
        formats = {
            Argument.SOURCE_GRADIENT: self._x,
            Argument.WEIGHTS: chosen,
            Argument.TARGET_GRADIENT: self._y,
        }
        return Primitive(description, formats), Reorder(self._plain, chosen)

    def _make_parameters(self) -> tuple[Primitive, Reorder, Handle]:
        operands = (self._x, self._any, self._bias, self._y, *self._sides, self._description)
        description = describe_primitive("convolution_backward_weights", _DIRECT, *operands)
        chosen = library().query_format(description, Argument.WEIGHTS_GRADIENT)
        formats = {
            Argument.SOURCE: self._x,
            Argument.WEIGHTS_GRADIENT: chosen,
            Argument.TARGET_GRADIENT: self._y,
        }
        if self._bias is not None:
            formats[Argument.BIAS_GRADIENT] = self._bias
        return Primitive(description, formats), Reorder(chosen, self._plain), chosen


_plan = keep_primitives(_ConvolutionPrimitives)

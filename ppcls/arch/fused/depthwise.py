"""Depthwise convolutions of NHWC images.

cuDNN has no fast kernel for them in this layout, above all none for the gradient of the weights. In float32,
fused networks used Paddle's kernels for this layout before, and on an H200, with the build of
docs/performance.md, predictions of MobileNetV1 in a CUDA graph ended with an illegal memory access, and the
trainings of MobileNetV3, EfficientNet and ConvNeXt were aborted. Networks without such convolutions had no
errors.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.batch_norm import Tail
from ppcls.arch.fused.cuda import Kernels, address, contiguous, kernels
from ppcls.arch.fused.sum_rows import sum_rows

_THREADS = 128  # threads per block; the same number as THREADS in depthwise.cu
_COLUMNS = 7  # pixels per strip
_SPARSE_COLUMNS = 8  # pixels per strip of the input's gradient with stride 2
_KERNELS = (3, 5, 7)
_STRIDES = (1, 2)
_DTYPES = (paddle.float32, paddle.float16, paddle.bfloat16)
_WIDEST = 32  # threads that process adjacent channels
_BLOCKS_PER_MULTIPROCESSOR = 16
_SUMMING_BLOCKS_PER_MULTIPROCESSOR = 4  # of the kernel that returns one row of sums per block


@dataclass(frozen=True)
class Window:
    """The settings of a depthwise convolution.

    Attributes:
        stride: Stride in both directions.
        padding: Number of zeros at the top, bottom, left and right.
    """

    stride: int
    padding: tuple[int, int, int, int]


def supports(weight: Sequence[int], stride: Sequence[int], channels: int, dtype: Any) -> bool:
    """Returns whether the kernels can compute a convolution with ``channels`` groups.

    Args:
        weight: Shape of the weights, [C', 1, KH, KW].
        stride: Stride (vertical, horizontal).
        channels: Number of channels of the images.
        dtype: Dtype of the images.
    """
    outputs, depth, height, width = weight
    square = height == width and stride[0] == stride[1]
    known = height in _KERNELS and stride[0] in _STRIDES and dtype in _DTYPES
    return square and known and depth == 1 and outputs == channels and channels % 2 == 0


def convolve_depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """Returns the depthwise convolution of images on the GPU.

    Args:
        x: [B, H, W, C] float32, float16 or bfloat16.
        weight: [C, 1, K, K] of any dtype.
        bias: [C] of any dtype; None for no bias.
        window: Stride and padding.
    """
    output: Tensor
    if bias is None:
        output = _Depthwise.apply(contiguous(x), weight, window)
    else:
        output = _BiasedDepthwise.apply(contiguous(x), weight, bias, window)
    return output


def convolve_depthwise_biased(x: Tensor, packed: Tensor, bias: Tensor, window: Window, tail: Tail) -> Tensor:
    """Returns the activation of the depthwise convolution of images on the GPU. It has no gradient.

    Args:
        x: [B, H, W, C] float32, float16 or bfloat16.
        packed: Weights, see `pack`.
        bias: [C] float32.
        window: Stride and padding.
        tail: Activation, except ``add_relu``.
    """
    kernel = math.isqrt(packed.shape[0])
    return _DepthwiseKernels(contiguous(x), kernel, window, tail).forward(contiguous(x), packed, bias)


def pack(weight: Tensor) -> Tensor:
    """Returns weights [C, 1, K, K] of any dtype in the order of the kernels, [K * K, C] float32.

    The kernels read the weights of adjacent channels together.
    """
    return weight.astype("float32").flatten(1).transpose([1, 0]).contiguous()


class _Depthwise(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `convolve_depthwise` without a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, window: Window) -> Tensor:
        return _forward(context, x, weight, None, window)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, gradient)[:2]


class _BiasedDepthwise(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `convolve_depthwise` with a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, window: Window) -> Tensor:
        return _forward(context, x, weight, bias, window)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, gradient)


def _forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    launcher = _DepthwiseKernels(x, weight.shape[-1], window)
    packed = pack(weight)
    context.save_for_backward(x, packed)
    context.launcher = launcher
    context.weight = (weight.shape, weight.dtype)
    context.bias_dtype = None if bias is None else bias.dtype
    context.needed = [tensor is not None and not tensor.stop_gradient for tensor in (x, weight, bias)]
    return launcher.forward(x, packed, None if bias is None else bias.astype("float32"))


def _gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Returns the gradients of images, weights and bias; None for those that are not needed."""
    x, packed = context.saved_tensor()
    gradient = contiguous(gradient)
    x_needed, weight_needed, bias_needed = context.needed
    dx = context.launcher.input_gradient(gradient, packed) if x_needed else None
    dweight = dbias = None
    if weight_needed or bias_needed:
        sums = context.launcher.parameter_gradients(x, gradient)
        shape, dtype = context.weight
        dweight = sums[:-1].transpose([1, 0]).reshape(shape).astype(dtype) if weight_needed else None
        dbias = sums[-1].astype(context.bias_dtype) if bias_needed else None
    return dx, dweight, dbias


class _DepthwiseKernels:
    """Launches the kernels for images with the shape and dtype of ``x``, and outputs with an activation."""

    def __init__(self, x: Tensor, kernel: int, window: Window, tail: Tail = "none") -> None:
        batch, height, width, channels = x.shape
        top, bottom, left, right = window.padding
        rows = (height + top + bottom - kernel) // window.stride + 1
        columns = (width + left + right - kernel) // window.stride + 1
        self._dtype = x.dtype
        self._kernel = kernel
        self._stride = window.stride
        self._pairs = channels // 2
        self._input = [batch, height, width, channels]
        self._output = [batch, rows, columns, channels]
        self._offsets = (top, left)
        self._width = _WIDEST
        while self._width > 8 and self._pairs % self._width:
            self._width //= 2
        defines = (
            f"KERNEL={kernel}",
            f"STRIDE={window.stride}",
            f"WIDTH={self._width}",
            f"TAIL={tail.upper()}",
        )
        self._kernels: Kernels = kernels("depthwise.cu", x.dtype, *defines)

    def forward(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the output [B, H', W', C]."""
        y = paddle.empty(self._output, self._dtype)
        sizes = (*self._input[:3], *self._output[1:3], self._pairs, *self._offsets, 0)
        grid = self._grid(self._output, _COLUMNS, _BLOCKS_PER_MULTIPROCESSOR)
        self._launch("depthwise", grid, (x, packed, bias, y), sizes)
        return y

    def input_gradient(self, gradient: Tensor, packed: Tensor) -> Tensor:
        """Returns the gradient of the images."""
        dx = paddle.empty(self._input, self._dtype)
        if self._stride == 1:
            offsets = (self._kernel - 1 - offset for offset in self._offsets)
            sizes = (*self._output[:3], *self._input[1:3], self._pairs, *offsets, 1)
            grid = self._grid(self._input, _COLUMNS, _BLOCKS_PER_MULTIPROCESSOR)
            self._launch("depthwise", grid, (gradient, packed, None, dx), sizes)
        else:
            sizes = (*self._input[:3], *self._output[1:3], self._pairs, *self._offsets)
            grid = self._grid(self._input, _SPARSE_COLUMNS, _BLOCKS_PER_MULTIPROCESSOR)
            self._launch("depthwise_input_gradient", grid, (gradient, packed, dx), sizes)
        return dx

    def parameter_gradients(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Returns the gradients of the weights and, in the last row, of the bias: [K * K + 1, C] float32."""
        grid = self._grid(self._output, _COLUMNS, _SUMMING_BLOCKS_PER_MULTIPROCESSOR)
        rows = self._kernel**2 + 1
        partial = paddle.empty([grid[1], rows * 2 * self._pairs])
        sizes = (*self._input[:3], *self._output[1:3], self._pairs, *self._offsets)
        self._launch("depthwise_weight_gradient", grid, (x, gradient, partial), sizes)
        return sum_rows(partial).reshape([rows, 2 * self._pairs])

    def _grid(self, image: Sequence[int], columns: int, per_multiprocessor: int) -> tuple[int, int]:
        """Returns the numbers of blocks: along the channels, and along the strips of images [B, H, W, C]."""
        across = -(-self._pairs // self._width)
        strips = image[0] * image[1] * -(-image[2] // columns)
        most = max(1, per_multiprocessor * self._kernels.multiprocessors // across)
        return across, min(most, -(-strips // (_THREADS // self._width)))

    def _launch(
        self,
        kernel: str,
        grid: tuple[int, int],
        tensors: Sequence[Tensor | None],
        sizes: Sequence[int],
    ) -> None:
        self._kernels.launch(kernel, grid, (_THREADS, 1), *map(address, tensors), *map(ctypes.c_int, sizes))

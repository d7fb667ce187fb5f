"""BatchNorm of NHWC images with an activation, which reads memory as few times as possible.

A step of ResNet-50 spends almost half of its time in BatchNorm, which is limited by memory traffic. The
forward pass reads the images twice: first to compute the statistics, then to normalize, add and apply ReLU.
The backward pass also reads them twice: first for the gradients of gamma and beta, then for the gradient of
the input. It computes the input of ReLU again instead of reading it. With a shortcut, the forward pass stores
one bit per value, which is 1 if ReLU passes the gradient.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from ppcls.arch.fused.cuda import address, contiguous, kernels, vector_length
from ppcls.arch.kernels.paddle_layers import epsilon_of, momentum_of, running_statistics

# Other block sizes, unrolling and cache hints were not faster: the kernels of a step took 14.8 to 20 ms
# instead of 14.8 ms.
_THREADS = 512  # threads per block; the same number as THREADS in batch_norm.cu
# Blocks per multiprocessor of the kernels with running statistics; their registers allow two. The other
# kernels add up sums of all blocks, which must be few.
_RUNNING_BLOCKS = 2
_WIDTH = 16  # vectors of a row per block; a small number, so that many blocks share the last step of a sum

Tail = Literal["none", "relu", "add_relu", "hard_swish", "swish"]
TAILS: dict[Callable[[Tensor], Tensor] | None, Tail] = {
    None: "none",
    F.relu: "relu",
    F.hardswish: "hard_swish",
    F.swish: "swish",
    F.silu: "swish",
}


def batch_norm(
    norm: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None = None, tail: Tail = "none"
) -> Tensor:
    """Returns the activation of ``norm(x)``, and updates the running statistics.

    Args:
        norm: Layer in training mode.
        x: [B, H, W, C] float32, float16 or bfloat16 on the GPU. The channels of a pixel must fill whole
            vectors of 16 bytes.
        shortcut: Tensor with the shape and dtype of ``x`` to add before ReLU, if ``tail`` is ``add_relu``.
        tail: Activation: ``none``, ``relu``, ``add_relu``, ``hard_swish`` or ``swish``.
    """
    output: Tensor
    x = contiguous(x)
    if shortcut is None:
        output = _BatchNorm.apply(x, norm.weight, norm.bias, norm, tail)
    else:
        output = _BatchNormAdd.apply(x, norm.weight, norm.bias, contiguous(shortcut), norm)
    return output


def normalize(norm: nn.BatchNorm2D, x: Tensor, shortcut: Tensor | None = None, tail: Tail = "none") -> Tensor:
    """Returns the activation of ``norm(x)``, computed with the running statistics and without gradients.

    Reads the images once. See `batch_norm` for the arguments.
    """
    x = contiguous(x)
    shortcut = None if shortcut is None else contiguous(shortcut)
    return _Launcher(x).normalize(x, norm, tail, shortcut)


def normalize_first(norm: nn.BatchNorm2D, x: Tensor) -> Tensor:
    """Returns ReLU of the norm of the first channels of images, as many as the norm has.

    Args:
        norm: Layer, whose running statistics are used.
        x: Contiguous [B, H, W, C]. See `batch_norm` for the dtype and the channels.
    """
    return _Launcher(x, norm.weight.shape[0]).normalize(x, norm, "relu", None)


def append_channels(target: Tensor, first: int, x: Tensor) -> None:
    """Copies images to the channels from ``first`` on of other images, in place.

    Args:
        target: Contiguous [B, H, W, C]. See `batch_norm` for the dtype and the channels.
        first: Number of channels before those that are replaced; they must fill whole vectors.
        x: [B, H, W, C'] of the same dtype.
    """
    x = contiguous(x)
    _Launcher(x).append(target, first, x)


class _BatchNorm(PyLayer):  # type: ignore[misc]
    """Differentiable BatchNorm, with an optional activation."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, gamma: Tensor, beta: Tensor, norm: nn.BatchNorm2D, tail: Tail
    ) -> Tensor:
        output, saved, _ = _Launcher(x).forward(x, norm, tail, None)
        context.save_for_backward(x, saved)
        context.tail = tail
        context.needed = [not tensor.stop_gradient for tensor in (x, gamma, beta)]
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, saved = context.saved_tensor()
        gradients = _Launcher(x).backward(gradient, x, saved, context.tail, None)
        return _needed_gradients(context.needed, gradients[:3])


class _BatchNormAdd(PyLayer):  # type: ignore[misc]
    """Differentiable BatchNorm, followed by the addition of a shortcut and ReLU."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, gamma: Tensor, beta: Tensor, shortcut: Tensor, norm: nn.BatchNorm2D
    ) -> Tensor:
        output, saved, mask = _Launcher(x).forward(x, norm, "add_relu", shortcut)
        context.save_for_backward(x, saved, mask)
        context.needed = [not tensor.stop_gradient for tensor in (x, gamma, beta, shortcut)]
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, saved, mask = context.saved_tensor()
        return _needed_gradients(context.needed, _Launcher(x).backward(gradient, x, saved, "add_relu", mask))


def _needed_gradients(needed: list[bool], gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Returns the gradients, and None for each gradient that Paddle does not need."""
    return tuple(gradient if used else None for used, gradient in zip(needed, gradients, strict=True))


class _Launcher:
    """Launches the kernels for images with the shape and dtype of ``x``, or for its first channels."""

    def __init__(self, x: Tensor, channels: int | None = None) -> None:
        self._kernels = kernels("batch_norm.cu", x.dtype)
        self._channels = x.shape[-1] if channels is None else channels
        self._rows = x.size // x.shape[-1]
        columns = self._channels // vector_length(x.dtype)
        width = min(columns, _WIDTH)
        height = _THREADS // width
        across = -(-columns // width)
        self._most_down = -(-self._rows // height)
        down = max(1, min(self._kernels.multiprocessors // across, self._most_down))
        self._grid = (across, down)
        self._block = (width, height)
        self._shape = ctypes.c_int(self._rows), ctypes.c_int(columns)

    def forward(
        self, x: Tensor, norm: nn.BatchNorm2D, tail: Tail, shortcut: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns the output, the statistics for `backward`, and ReLU's bit mask if there is a shortcut."""
        saved = paddle.empty([4 * self._channels])
        sums = self._sums()
        parameters = x, norm.weight, norm.bias, *running_statistics(norm)
        rates = ctypes.c_float(momentum_of(norm)), ctypes.c_float(epsilon_of(norm))
        results = saved, sums, _block_counters()
        self._launch("statistics", *map(address, parameters), *rates, *map(address, results))
        output = paddle.empty_like(x)
        mask = None if shortcut is None else paddle.empty([x.size // vector_length(x.dtype)], "uint8")
        self._launch(f"normalize_{tail}", *map(address, (x, shortcut, output, mask, saved)))
        return output, saved, mask

    def normalize(self, x: Tensor, norm: nn.BatchNorm2D, tail: Tail, shortcut: Tensor | None) -> Tensor:
        """Returns the output with running statistics."""
        output = paddle.empty([*x.shape[:-1], self._channels], x.dtype)
        statistics = norm.weight, norm.bias, *running_statistics(norm)
        operands = map(address, (x, shortcut, output, *statistics))
        epsilon = ctypes.c_float(epsilon_of(norm))
        across, down = self._grid
        grid = (across, min(_RUNNING_BLOCKS * down, self._most_down))
        kernel = f"normalize_running_{tail}"
        self._kernels.launch(kernel, grid, self._block, *operands, epsilon, _pitch(x), *self._shape)
        return output

    def append(self, target: Tensor, first: int, x: Tensor) -> None:
        """Copies the images to channels of ``target``."""
        begin = ctypes.c_int(first // vector_length(x.dtype))
        self._launch("append", address(x), address(target), begin, _pitch(target))

    def backward(
        self, gradient: Tensor, x: Tensor, saved: Tensor, tail: Tail, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns the gradients of the input, gamma, beta and the shortcut."""
        dgamma = paddle.empty([self._channels])
        dbeta = paddle.empty([self._channels])
        factors = paddle.empty([2 * self._channels])
        passed = None if mask is None else paddle.empty_like(x)
        gradient = contiguous(gradient)
        operands = gradient, x, mask, passed, saved
        results = dgamma, dbeta, factors, self._sums(), _block_counters()
        self._launch(f"parameter_gradients_{tail}", *map(address, (*operands, *results)))
        dx = paddle.empty_like(x)
        source = gradient if passed is None else passed
        # The gradient of a shortcut is that of the normalized values already.
        kernel = "none" if tail == "add_relu" else tail
        self._launch(f"input_gradient_{kernel}", *map(address, (source, x, dx, saved, factors)))
        return dx, dgamma, dbeta, passed

    def _sums(self) -> Tensor:
        """Returns memory for two sums per block and channel."""
        return paddle.empty([2 * self._grid[1] * self._channels])

    def _launch(self, kernel: str, *arguments: Any) -> None:
        self._kernels.launch(kernel, self._grid, self._block, *arguments, *self._shape)


def _pitch(x: Tensor) -> ctypes.c_int:
    """Returns the number of vectors of a pixel."""
    return ctypes.c_int(x.shape[-1] // vector_length(x.dtype))


@cache
def _block_counters() -> Tensor:
    """Returns counters of finished blocks, one per column of blocks. They are zero between two kernels."""
    return paddle.zeros([1024], "int32")

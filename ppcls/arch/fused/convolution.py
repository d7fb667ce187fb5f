"""Convolutions of NHWC images that call cuDNN in the same layout, which tensor cores require.

Paddle 2.6 avoids the change of layout for float16 only. It converts float32 and bfloat16 images to NCHW and
back in each convolution. Weights have the same order as in Paddle, so checkpoints do not change.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.cuda import (
    CudaUnavailableError,
    address,
    contiguous,
    current_stream,
    load_library,
)
from ppcls.arch.kernels.geometry import Geometry

# values of enumerations in cudnn.h
_NHWC = 1
_CROSS_CORRELATION = 1
_FLOAT = 0
# default math is TF32 for float32 unless NVIDIA_TF32_OVERRIDE=0
_DEFAULT_MATH = 0
_TENSOR_CORES = 1
_ELEMENTS = {paddle.float32: 0, paddle.float16: 2, paddle.bfloat16: 9}  # cudnnDataType_t
IMAGE_CHANNELS = 4  # minimum number of channels of images; in half precision, cuDNN is slower with 3
# The same without gradients, for small kernels. cuDNN does not use tensor cores for them with 4 channels, and
# the first convolution of MobileNetV3 took 1.3 ms of a batch of 128.
_SMALL_KERNEL_CHANNELS = 8
_SMALL_KERNEL = 5
_ALGORITHMS = 8  # number of candidates to request; cuDNN has at most 8 algorithms per direction
_IMPLICIT_PRECOMPUTED = 1  # the only algorithm of convolutions with a bias and no activation
_RELU = 1
_IDENTITY = 5
_PROPAGATE_NAN = 1
_TOLERANCE = 0.05  # of two ways to compute the same; bfloat16 has an error of 0.004 per number
_DETERMINISTIC = "FLAGS_cudnn_deterministic"
_MAX_WORKSPACE = 1 << 30  # bytes

_Descriptors = tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


def convolve(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Returns the convolution of NHWC images on the GPU.

    Args:
        x: [B, H, W, C] float32, float16 or bfloat16.
        weight: [C', C / groups, KH, KW], in the dtype of ``x``.
        geometry: Stride, dilation, groups, and padding that is `even`, because cuDNN has no other.
    """
    output: Tensor = _Convolution.apply(contiguous(x), weight, geometry)
    return output


def convolve_ordered(x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Returns the result of `convolve` without a gradient.

    Args:
        x: See `convolve`.
        kernel: Contiguous weights in cuDNN's order, [C', KH, KW, C / groups], in the dtype of ``x``.
        geometry: See `convolve`.
    """
    outputs, height, width, channels = kernel.shape
    plan = _plan(tuple(x.shape), (outputs, channels, height, width), x.dtype, geometry)
    return plan.forward(contiguous(x), kernel)


def convolve_fork(x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Returns the result of `convolve`, and ``x`` for a second consumer.

    In the backward pass, the convolution adds its gradient in place to the gradient of the second consumer. A
    separate addition would read both gradients and write a third tensor. ``x`` must require a gradient.
    """
    output, same = _ForkingConvolution.apply(contiguous(x), weight, geometry)
    return output, same


def convolve_biased(
    x: Tensor, kernel: Tensor, bias: Tensor, geometry: Geometry, shortcut: Tensor | None, *, relu: bool
) -> Tensor:
    """Returns ``convolution(x) + bias + shortcut``, and applies ReLU to it if ``relu`` is True.

    One kernel computes all of it. It has no gradient.

    Args:
        x: Contiguous [B, H, W, C] float16 or bfloat16.
        kernel: Contiguous weights in cuDNN's order, [C', KH, KW, C / groups], in the dtype of ``x``.
        bias: [C'], in the dtype of ``x``.
        geometry: As in `convolve`.
        shortcut: Contiguous [B, H', W', C'], in the dtype of ``x``; None for no addition.
        relu: Whether to apply ReLU.

    Raises:
        CudaUnavailableError: cuDNN has no such kernel for these shapes.
    """
    outputs, height, width, channels = kernel.shape
    plan = _plan(tuple(x.shape), (outputs, channels, height, width), x.dtype, geometry)
    return plan.forward_biased(x, kernel, bias, shortcut, relu=relu)


def missing_channels(weight: Sequence[int], *, gradients: bool) -> int:
    """Returns the number of channels of zeros that images in half precision need for a convolution.

    Args:
        weight: Shape of the weights, [C', C, KH, KW], without groups.
        gradients: Whether gradients are computed, too.
    """
    small = not gradients and max(weight[2:]) <= _SMALL_KERNEL
    least = _SMALL_KERNEL_CHANNELS if small and weight[1] < IMAGE_CHANNELS else IMAGE_CHANNELS
    return max(0, least - weight[1])


@cache
def find_problem(
    image: tuple[int, ...], weight: tuple[int, ...], dtype: Any, geometry: Geometry
) -> str | None:
    """Returns why cuDNN cannot compute a convolution or one of its gradients; None if it can.

    Args:
        image: Shape of the images, [B, H, W, C].
        weight: Shape of the weights, [C', C / groups, KH, KW].
        dtype: Dtype of both.
        geometry: Padding, stride, dilation and groups.
    """
    try:
        _plan(image, weight, dtype, geometry).choose_algorithms()
    except CudaUnavailableError as error:
        return str(error)
    return None


@cache
def find_problem_with_bias(
    image: tuple[int, ...], weight: tuple[int, ...], dtype: Any, geometry: Geometry, relu: bool, added: bool
) -> str | None:
    """Returns why `convolve_biased` must not be used; None if it computes the right numbers.

    Compares it with separate operators, and checks that it keeps NaN, by which a network shows that numbers
    left the range of float16.

    Args:
        image: Shape of the images, [B, H, W, C].
        weight: Shape of the weights in Paddle's order, [C', C / groups, KH, KW].
        dtype: Dtype of both.
        geometry: Padding, stride, dilation and groups.
        relu: Whether ReLU is applied.
        added: Whether a shortcut is added.
    """
    outputs, channels, *sides = weight
    count = image[0]
    x = _waves([1, *image[1:]], dtype).tile([count, 1, 1, 1])
    kernel = _waves([outputs, *sides, channels], dtype) / math.sqrt(channels * math.prod(sides))
    bias = _waves([outputs], dtype)
    try:
        expected = _plan(image, weight, dtype, geometry).forward(x, kernel)[:1] + bias
        addend = _waves(expected.shape, dtype)
        expected = (expected + addend if added else expected).astype("float32")
        if relu:
            expected = paddle.where(expected <= 0.0, paddle.zeros_like(expected), expected)
        shortcut = addend.tile([count, 1, 1, 1]) if added else None
        result = convolve_biased(x, kernel, bias, geometry, shortcut, relu=relu).astype("float32")
        nan = paddle.full_like(x, float("nan"))
        lost = convolve_biased(nan, kernel, bias, geometry, shortcut, relu=relu)
    except CudaUnavailableError as error:
        return str(error)
    size = float(paddle.linalg.norm(expected))
    for part in (result[:1], result[-1:]):
        difference = float(paddle.linalg.norm(part - expected))
        if not difference <= _TOLERANCE * size:
            return f"with a bias, cuDNN returns numbers that differ by {difference / size:.1%}"
    return None if bool(paddle.isnan(lost).all()) else "with a bias, cuDNN replaces NaN by numbers"


def _waves(shape: Sequence[int], dtype: Any) -> Tensor:
    """Returns numbers between -1 and 1, the same at each call."""
    return paddle.arange(math.prod(shape), dtype="float32").sin().reshape(shape).astype(dtype)


class _Convolution(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `convolve`."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        context.plan = _plan(tuple(x.shape), tuple(weight.shape), x.dtype, geometry)
        context.input_needed = not x.stop_gradient
        context.weight_needed = not weight.stop_gradient
        kernel = _channels_last(weight)
        context.save_for_backward(x, kernel)
        output: Tensor = context.plan.forward(x, kernel)
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return _gradients(context, gradient, None)


class _ForkingConvolution(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `convolve_fork`, which also returns its input."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        # Return a view of x. If an operation returns x itself, Paddle assumes a change in place.
        return _Convolution.forward(context, x, weight, geometry), paddle.view(x, x.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor, other: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return _gradients(context, gradient, contiguous(other))


def _gradients(context: Any, gradient: Tensor, total: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of the input and the weights.

    If ``total`` is not None, the gradient of the input is added to it in place.
    """
    x, kernel = context.saved_tensor()
    gradient = contiguous(gradient)
    dx = context.plan.input_gradient(gradient, kernel, total) if context.input_needed else None
    dw = context.plan.weight_gradient(x, gradient) if context.weight_needed else None
    return dx, dw


def _channels_last(weight: Tensor) -> Tensor:
    """Returns weights in the memory order [C', KH, KW, C].

    The weights of 1x1 kernels already have this order, so they are not transposed.
    """
    return contiguous(weight if weight.shape[2] == weight.shape[3] == 1 else weight.transpose([0, 2, 3, 1]))


class _Performance(ctypes.Structure):
    """cuDNN's struct cudnnConvolutionFwdAlgoPerf_t, or one of the equal structs for gradients."""

    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


class _Plan:
    """cuDNN's descriptors and algorithms of a convolution for images of one size."""

    def __init__(
        self, image: tuple[int, ...], weight: tuple[int, ...], dtype: Any, geometry: Geometry
    ) -> None:
        self._cudnn = cudnn()
        pad_y, _, pad_x, _ = geometry.padding
        stride_y, stride_x = geometry.stride
        dilate_y, dilate_x = geometry.dilation
        groups = geometry.groups
        batch, height, width, channels = image
        outputs, _, kernel_y, kernel_x = weight
        rows, columns = geometry.output_size((height, width), (kernel_y, kernel_x))
        self._input = list(image)
        self._output = [batch, rows, columns, outputs]
        self._kernel = [outputs, kernel_y, kernel_x, channels // groups]
        element = _ELEMENTS[dtype]
        make = self._cudnn.descriptor
        self._x = make("Tensor", "Tensor4d", _NHWC, element, batch, channels, height, width)
        self._y = make("Tensor", "Tensor4d", _NHWC, element, batch, outputs, rows, columns)
        self._w = make("Filter", "Filter4d", element, _NHWC, outputs, channels // groups, kernel_y, kernel_x)
        self._bias = make("Tensor", "Tensor4d", _NHWC, element, 1, outputs, 1, 1)
        shape = (pad_y, pad_x, stride_y, stride_x, dilate_y, dilate_x, _CROSS_CORRELATION, _FLOAT)
        self._convolution = make("Convolution", "Convolution2d", *shape)
        self._cudnn.call("cudnnSetConvolutionGroupCount", self._convolution, groups)
        math = _DEFAULT_MATH if dtype == paddle.float32 else _TENSOR_CORES
        self._cudnn.call("cudnnSetConvolutionMathType", self._convolution, math)
        self._algorithms: dict[str, tuple[int, int, int]] = {}
        self._operands: dict[str, _Descriptors] = {
            "Forward": (self._x, self._w, self._y),
            "BackwardData": (self._w, self._y, self._x),
            "BackwardFilter": (self._x, self._y, self._w),
        }

    def choose_algorithms(self) -> None:
        """Chooses the algorithms of all directions.

        Raises:
            CudaUnavailableError: cuDNN has none.
        """
        for direction, operands in self._operands.items():
            self._choose(direction, operands)

    def forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Returns the output [B, H', W', C']."""
        y = paddle.empty(self._output, x.dtype)
        self._run("Forward", (x, kernel, y))
        return y

    def forward_biased(
        self, x: Tensor, kernel: Tensor, bias: Tensor, shortcut: Tensor | None, *, relu: bool
    ) -> Tensor:
        """See `convolve_biased`."""
        library = self._cudnn
        y = paddle.empty(self._output, x.dtype)
        algorithm, size, math = self._choose_biased()
        library.call("cudnnSetConvolutionMathType", self._convolution, math)
        addend = y if shortcut is None else shortcut  # multiplied by 0, and not read, if there is no shortcut
        library.call(
            "cudnnConvolutionBiasActivationForward",
            library.handle(),
            ctypes.byref(ctypes.c_float(1.0)),
            *(self._x, address(x), self._w, address(kernel)),
            self._convolution,
            algorithm,
            address(library.workspace(size)),
            ctypes.c_size_t(size),
            ctypes.byref(ctypes.c_float(0.0 if shortcut is None else 1.0)),
            *(self._y, address(addend), self._bias, address(bias)),
            library.activation(_RELU if relu else _IDENTITY),
            *(self._y, address(y)),
        )
        return y

    def input_gradient(self, gradient: Tensor, kernel: Tensor, total: Tensor | None) -> Tensor:
        """Returns the gradient of the images. If ``total`` is not None, adds the gradient to it in place."""
        dx = paddle.empty(self._input, gradient.dtype) if total is None else total
        self._run("BackwardData", (kernel, gradient, dx), beta=0.0 if total is None else 1.0)
        return dx

    def weight_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Returns the gradient of the weights in Paddle's order."""
        dw = paddle.empty(self._kernel, x.dtype)
        self._run("BackwardFilter", (x, gradient, dw))
        outputs, kernel_y, kernel_x, channels = self._kernel
        if kernel_y == kernel_x == 1:
            return dw.reshape([outputs, channels, 1, 1])
        return dw.transpose([0, 3, 1, 2]).contiguous()

    def _choose(self, direction: str, operands: _Descriptors) -> tuple[int, int, int]:
        """Returns the algorithm of a direction, its workspace in bytes, and its math type."""
        if direction not in self._algorithms:
            self._algorithms[direction] = self._cudnn.choose(direction, operands, self._convolution)
        return self._algorithms[direction]

    def _choose_biased(self) -> tuple[int, int, int]:
        """Returns the algorithm of `forward_biased`; see `_choose`."""
        if "biased" not in self._algorithms:
            operands = self._operands["Forward"]
            only = _IMPLICIT_PRECOMPUTED
            self._algorithms["biased"] = self._cudnn.choose("Forward", operands, self._convolution, only)
        return self._algorithms["biased"]

    def _run(self, direction: str, tensors: tuple[Tensor, Tensor, Tensor], beta: float = 0.0) -> None:
        """Computes ``direction``. The third tensor receives the result plus ``beta`` times its old value."""
        library = self._cudnn
        operands = self._operands[direction]
        algorithm, size, math = self._choose(direction, operands)
        library.call("cudnnSetConvolutionMathType", self._convolution, math)
        workspace = library.workspace(size)
        first, second, result = (
            (descriptor, address(tensor)) for descriptor, tensor in zip(operands, tensors, strict=True)
        )
        library.call(
            f"cudnnConvolution{direction}",
            library.handle(),
            ctypes.byref(ctypes.c_float(1.0)),
            *first,
            *second,
            self._convolution,
            algorithm,
            address(workspace),
            ctypes.c_size_t(size),
            ctypes.byref(ctypes.c_float(beta)),
            *result,
        )


_plan = cache(_Plan)


@cache
def cudnn() -> Cudnn:
    """Returns the cuDNN library, which is loaded at the first call.

    Raises:
        CudaUnavailableError: The library can't be loaded.
    """
    return Cudnn()


class Cudnn:
    """The cuDNN library, its handle on Paddle's stream, and memory for its algorithms."""

    def __init__(self) -> None:
        self._library = load_library(["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"])
        self._library.cudnnGetErrorString.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        self._stream = 0
        self.call("cudnnCreate", ctypes.byref(self._handle))
        self._workspaces = [paddle.empty([1 << 20], "uint8")]  # all stay allocated: CUDA graphs may use them
        self._activations: dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: object) -> None:
        """Calls the cuDNN function ``name``.

        Raises:
            CudaUnavailableError: The function returned an error.
        """
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CudaUnavailableError(f"{name}: {self._library.cudnnGetErrorString(status).decode()}")

    def handle(self) -> ctypes.c_void_p:
        """Returns cuDNN's handle after setting it to Paddle's current stream."""
        if (stream := current_stream()) != self._stream:
            self.call("cudnnSetStream", self._handle, ctypes.c_void_p(stream))
            self._stream = stream
        return self._handle

    def workspace(self, size: int) -> Tensor:
        """Returns memory of at least ``size`` bytes, shared by all algorithms."""
        if self._workspaces[-1].size < size:
            self._workspaces.append(paddle.empty([size], "uint8"))
        return self._workspaces[-1]

    def activation(self, mode: int) -> ctypes.c_void_p:
        """Returns the descriptor of an activation without parameters, a cudnnActivationMode_t."""
        if mode not in self._activations:
            values = mode, _PROPAGATE_NAN, ctypes.c_double(0.0)
            self._activations[mode] = self.descriptor("Activation", "Activation", *values)
        return self._activations[mode]

    def descriptor(self, create: str, fill: str, *values: object) -> ctypes.c_void_p:
        """Returns a new descriptor after ``cudnnSet{fill}Descriptor`` has set it to ``values``."""
        descriptor = ctypes.c_void_p()
        self.call(f"cudnnCreate{create}Descriptor", ctypes.byref(descriptor))
        self.call(f"cudnnSet{fill}Descriptor", descriptor, *values)
        return descriptor

    def choose(
        self,
        direction: str,
        operands: _Descriptors,
        convolution: ctypes.c_void_p,
        only: int | None = None,
    ) -> tuple[int, int, int]:
        """Returns the algorithm that cuDNN expects to be fastest, its workspace in bytes, and its math type.

        cuDNN can also time all algorithms, but this search finds no faster ones (docs/performance.md).

        Args:
            direction: Part of the name of cuDNN's functions.
            operands: Descriptors of the operands and the result.
            convolution: Descriptor of the convolution.
            only: The one algorithm that is allowed; None for any.

        Raises:
            CudaUnavailableError: No algorithm is allowed, or each needs too much memory.
        """
        first, second, result = operands
        candidates = (_Performance * _ALGORITHMS)()
        count = ctypes.c_int()
        name = f"cudnnGetConvolution{direction}Algorithm_v7"
        operation = first, second, convolution, result
        self.call(name, self.handle(), *operation, _ALGORITHMS, ctypes.byref(count), candidates)
        deterministic = paddle.get_flags(_DETERMINISTIC)[_DETERMINISTIC]
        for candidate in candidates[: count.value]:
            allowed = candidate.determinism == 1 or not deterministic
            allowed = allowed and only in (None, candidate.algorithm)
            if candidate.status == 0 and candidate.memory <= _MAX_WORKSPACE and allowed:
                return candidate.algorithm, candidate.memory, candidate.math
        raise CudaUnavailableError(f"{name}: no allowed algorithm has a workspace <= {_MAX_WORKSPACE} bytes")

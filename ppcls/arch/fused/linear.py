"""Linear layers in half precision by cuBLASLt, whose products also add the bias or sum up its gradient.

Paddle needs a separate operator for each of these, which reads and writes all tokens. Gradients of float32
weights are float32, without a rounding to half precision in between.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.amp import cast, name_of, rounded
from ppcls.arch.fused.cuda import CudaUnavailableError, address, contiguous, current_stream, load_library
from ppcls.arch.fused.gelu import compute_gelu, compute_gradients

# values of enumerations in cublasLt.h and library_types.h
_COMPUTE_FLOAT32 = 68
_TYPES = {paddle.float32: 0, paddle.float16: 2, paddle.bfloat16: 14}
_TRANSPOSE_A = 3
_TRANSPOSE_B = 4
_EPILOGUE = 7
_BIAS_POINTER = 8
_EPILOGUES = {"none": 1, "bias": 4, "bias_gelu": 36, "bias_gradient": 256}
_MAX_WORKSPACE = 1
_MIN_ALIGNMENTS = (5, 6, 7, 8)
_ALIGNMENT = 16  # bytes
_WORKSPACE = 32 << 20  # bytes; cuBLAS recommends this size for Hopper GPUs
_HALF = (paddle.float16, paddle.bfloat16)

Epilogue = Literal["none", "bias", "bias_gelu", "bias_gradient"]


def find_problem(inputs: int, outputs: int, dtype: Any) -> str | None:
    """Returns why `multiply` can't compute a linear layer; None if it can."""
    if dtype not in _HALF:
        return f"the kernels need float16 or bfloat16, got {name_of(dtype)}"
    if inputs % 8 or outputs % 8:  # otherwise, the rows of the matrices are not aligned
        return f"the kernels need multiples of 8 features, got {inputs} and {outputs}"
    return None


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns ``x @ weight + bias``.

    Args:
        x: [..., K] float16 or bfloat16 on the GPU.
        weight: [K, N], or that of a convolution, whose values for a patch are the rows of a matrix [K, N]. Of
            any dtype; it is rounded to the dtype of ``x``.
        bias: [N] of any dtype; None for no bias.
    """
    output: Tensor
    if bias is None:
        output = _Product.apply(contiguous(x), weight)
    else:
        output = _BiasedProduct.apply(contiguous(x), weight, bias)
    return output


def multiply_gelu(x: Tensor, weight: Tensor, bias: Tensor, *, approximate: bool) -> Tensor:
    """Returns ``gelu(x @ weight + bias)``. See `multiply`.

    The kernel of GELU's gradient also sums up the gradient of the bias.

    Args:
        approximate: Whether cuBLASLt may compute all of it, without a gradient. It approximates GELU by the
            hyperbolic tangent, with an error of at most 0.0005, which is about the rounding error of float16
            where the error is largest. A kernel of its own would read and write the largest tensors of a
            transformer again.
    """
    x = contiguous(x)
    if approximate:
        operation = Operation("forward", _sizes(x, weight), x.dtype, x.dtype, biased=True, gelu=True)
        if cublas().can_run(operation):
            return _run_forward(operation, x, rounded(weight, x.dtype), bias)
    output: Tensor = _GeluProduct.apply(x, weight, bias)
    return output


class _Product(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `multiply` without a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        y = _forward(context, x, weight, None)
        context.save_for_backward(*context.saved)
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, context.saved_tensor(), gradient)[:2]


class _BiasedProduct(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `multiply` with a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _forward(context, x, weight, bias)
        context.save_for_backward(*context.saved)
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, context.saved_tensor(), gradient)


class _GeluProduct(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `multiply_gelu`."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        hidden = _forward(context, x, weight, bias)
        context.save_for_backward(*context.saved, hidden)
        return compute_gelu(hidden)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *saved, hidden = context.saved_tensor()
        dhidden, dbias = compute_gradients(contiguous(gradient), hidden)
        return _gradients(context, saved, dhidden, dbias)


def _forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the product, and sets what `_gradients` needs, except the tensors ``saved``."""
    half = _as_matrix(rounded(weight, x.dtype))
    context.saved = (x, half)
    context.weight_shape = weight.shape
    context.weight_dtype = weight.dtype
    context.bias_dtype = None if bias is None else bias.dtype
    context.needed = [tensor is not None and not tensor.stop_gradient for tensor in (x, weight, bias)]
    operation = Operation("forward", _sizes(x, half), x.dtype, x.dtype, bias is not None)
    return _run_forward(operation, x, half, bias)


def _as_matrix(weight: Tensor) -> Tensor:
    """Returns the weight of a convolution, [N, C, H, W], as [H W C, N], and matrices as they are."""
    if weight.ndim == 2:
        return weight
    return contiguous(weight.transpose([2, 3, 1, 0]).reshape([-1, weight.shape[0]]))


def _as_weight(matrix: Tensor, shape: list[int]) -> Tensor:
    """Returns the result of `_as_matrix` in the original shape."""
    if len(shape) == 2:
        return matrix
    outputs, channels, height, width = shape
    return contiguous(matrix.reshape([height, width, channels, outputs]).transpose([3, 2, 0, 1]))


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int, int]:
    inputs, outputs = weight.shape
    return x.size // inputs, inputs, outputs


def _run_forward(operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = paddle.empty([*x.shape[:-1], weight.shape[1]], x.dtype)
    cublas().run(operation, (x, weight, y), None if bias is None else rounded(bias, x.dtype))
    return y


def _gradients(
    context: Any, saved: Sequence[Tensor], gradient: Tensor, dbias: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of the input, the weight and the bias; None for those that are not needed.

    Args:
        context: Context of `_forward`.
        saved: Input and rounded weight.
        gradient: Gradient of the product.
        dbias: Gradient of the bias if it is known.
    """
    x, weight = saved
    gradient = contiguous(gradient)
    outputs = weight.shape[1]
    sizes = _sizes(x, weight)
    x_needed, weight_needed, bias_needed = context.needed
    dx = dweight = None
    if x_needed:
        dx = paddle.empty_like(x)
        cublas().run(Operation("input", sizes, x.dtype, x.dtype), (gradient, weight, dx), None)
    if weight_needed:
        dweight = paddle.empty(weight.shape, context.weight_dtype)
        summing = bias_needed and dbias is None
        operation = Operation("weight", sizes, x.dtype, context.weight_dtype, summing)
        if summing and cublas().can_run(operation):
            dbias = paddle.empty([outputs], context.weight_dtype)
            cublas().run(operation, (x, gradient, dweight), dbias)
        else:
            operation = Operation("weight", sizes, x.dtype, context.weight_dtype)
            cublas().run(operation, (x, gradient, dweight), None)
        dweight = _as_weight(dweight, context.weight_shape)
    if not bias_needed:
        return dx, dweight, None
    if dbias is None:
        dbias = gradient.reshape([-1, outputs]).astype("float32").sum(0)
    return dx, dweight, cast(dbias, context.bias_dtype)


@dataclass(frozen=True)
class Operation:
    """A product of matrices in the memory order of C.

    Attributes:
        kind: ``forward`` for ``y = x w``, ``input`` for ``dx = dy w^T``, ``weight`` for ``dw = x^T dy``; x is
            [M, K], w is [K, N] and y is [M, N].
        sizes: M, K and N.
        dtype: Dtype of both factors.
        result: Dtype of the product.
        biased: Whether the product adds a bias to y, or also returns the sum of the rows of dy.
        gelu: Whether GELU is applied to y after the bias.
    """

    kind: Literal["forward", "input", "weight"]
    sizes: tuple[int, int, int]
    dtype: Any
    result: Any
    biased: bool = False
    gelu: bool = False


class _Algorithm(ctypes.Structure):
    """The C struct ``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class _ProductPlan:
    """Descriptors and the algorithm of an operation."""

    description: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    algorithm: _Algorithm


@cache
def cublas() -> CublasLt:
    """Returns the cuBLASLt library, which is loaded at the first call.

    Raises:
        CudaUnavailableError: The library can't be loaded.
    """
    return CublasLt()


class CublasLt:
    """The cuBLASLt library, its handle, workspace and plans."""

    def __init__(self) -> None:
        names = [f"libcublasLt.so.{version}" for version in (13, 12, 11)]
        self._library = load_library([*names, "libcublasLt.so"])
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace = paddle.empty([_WORKSPACE], "uint8")
        self._plans: dict[Operation, _ProductPlan | None] = {}

    def can_run(self, operation: Operation) -> bool:
        """Returns whether cuBLASLt has an algorithm for an operation."""
        return self._plan(operation) is not None

    def run(
        self, operation: Operation, tensors: tuple[Tensor, Tensor, Tensor], vector: Tensor | None
    ) -> None:
        """Computes a product on Paddle's stream.

        Args:
            tensors: The factors and the product, in the order in which `Operation.kind` names them.
            vector: The bias or its gradient, of the dtype of the product; None if the operation has none.

        Raises:
            CudaUnavailableError: cuBLASLt has no algorithm for the operation, or reports an error.
        """
        plan = self._plan(operation)
        if plan is None:
            raise CudaUnavailableError(f"cuBLASLt has no algorithm for {operation}")
        if vector is not None:
            self._set(plan.description, _BIAS_POINTER, ctypes.c_void_p(vector.data_ptr()))
        # cuBLASLt's matrices have the order of Fortran, so it computes the transpose: y^T = w^T x^T.
        first, second, result = tensors
        left, right = second, first
        a, b, d = plan.layouts
        one = ctypes.c_float(1.0)
        zero = ctypes.c_float(0.0)
        self._call(
            "cublasLtMatmul",
            self._handle,
            plan.description,
            ctypes.byref(one),
            *(address(left), a, address(right), b),
            ctypes.byref(zero),
            *(address(result), d, address(result), d),
            ctypes.byref(plan.algorithm),
            address(self._workspace),
            ctypes.c_size_t(_WORKSPACE),
            ctypes.c_void_p(current_stream()),
        )

    def _plan(self, operation: Operation) -> _ProductPlan | None:
        if operation not in self._plans:
            self._plans[operation] = self._make_plan(operation)
        return self._plans[operation]

    def _make_plan(self, operation: Operation) -> _ProductPlan | None:
        rows, inputs, outputs = operation.sizes
        # Rows and columns of the matrices in Fortran's order.
        x = (inputs, rows)
        w = (outputs, inputs)
        y = (outputs, rows)
        a, b, d = {"forward": (w, x, y), "input": (w, y, x), "weight": (y, x, w)}[operation.kind]
        description = ctypes.c_void_p()
        scale = _TYPES[paddle.float32]
        self._call("cublasLtMatmulDescCreate", ctypes.byref(description), _COMPUTE_FLOAT32, scale)
        self._set(description, _TRANSPOSE_A, ctypes.c_int(operation.kind == "input"))
        self._set(description, _TRANSPOSE_B, ctypes.c_int(operation.kind == "weight"))
        name: Epilogue = "none"
        if operation.biased:
            if operation.kind == "weight":
                name = "bias_gradient"
            elif operation.gelu:
                name = "bias_gelu"
            else:
                name = "bias"
            # The search for an algorithm needs a pointer with the alignment of the later ones.
            self._set(description, _BIAS_POINTER, ctypes.c_void_p(self._workspace.data_ptr()))
        self._set(description, _EPILOGUE, ctypes.c_int(_EPILOGUES[name]))
        layouts = (
            self._layout(operation.dtype, a),
            self._layout(operation.dtype, b),
            self._layout(operation.result, d),
        )
        algorithm = self._find_algorithm(description, layouts)
        return None if algorithm is None else _ProductPlan(description, layouts, algorithm)

    def _layout(self, dtype: Any, shape: tuple[int, int]) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        sides = (ctypes.c_uint64(shape[0]), ctypes.c_uint64(shape[1]), ctypes.c_int64(shape[0]))
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _TYPES[dtype], *sides)
        return layout

    def _find_algorithm(
        self,
        description: ctypes.c_void_p,
        layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
    ) -> _Algorithm | None:
        preference = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        settings: list[tuple[int, Any]] = [(_MAX_WORKSPACE, ctypes.c_uint64(_WORKSPACE))]
        settings += [(alignment, ctypes.c_uint32(_ALIGNMENT)) for alignment in _MIN_ALIGNMENTS]
        for setting, value in settings:
            size = ctypes.c_size_t(ctypes.sizeof(value))
            name = "cublasLtMatmulPreferenceSetAttribute"
            self._call(name, preference, setting, ctypes.byref(value), size)
        algorithm = _Algorithm()
        count = ctypes.c_int()
        a, b, d = layouts
        operands = (self._handle, description, a, b, d, d, preference, 1)
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            *operands, ctypes.byref(algorithm), ctypes.byref(count)
        )
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        return algorithm if status == 0 and count.value == 1 and algorithm.state == 0 else None

    def _set(self, description: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call("cublasLtMatmulDescSetAttribute", description, attribute, ctypes.byref(value), size)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CudaUnavailableError(f"{name} failed with status {status} of cuBLASLt")

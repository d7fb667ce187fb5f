"""Squeeze-and-excitation by two kernels, while weights do not change.

Paddle needs about ten: transposed weights, products of matrices whose sizes are often no multiples of 8,
activations, and a product of images and gates that computes the index of each number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.fused.amp import cast, compute_dtype
from ppcls.arch.fused.batch_norm import TAILS
from ppcls.arch.fused.cuda import address, contiguous, fills_vectors, kernels, vector_length
from ppcls.arch.fused.folded import WeightCopies
from ppcls.arch.kernels.paddle_layers import groups_of
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation

_HALF = (paddle.float16, paddle.bfloat16)
# the same numbers as in excitation.cu
_THREADS = 256
_GATE_THREADS = 1024
_WIDTH = 32  # largest number of vectors of a pixel per block
_FLOAT = 4  # bytes
# Limits of the shared memory of a block.
_MOST_CHANNELS = 4096
_MOST_SQUEEZED = 1024
_PIXELS = 16  # pixels per thread, if there are as many
_SLOPE = 1 / 6  # Paddle's default of hard sigmoid
_OFFSET = 0.5


def fuse_excitations(model: nn.Layer) -> None:
    """Makes the NHWC layers `SqueezeExcitation` of a model use the kernels.

    They are used within `ppcls.arch.fused.folded.constant_weights`, if the mean of all pixels uses its
    kernel. Other layers, such as `LinearSqueezeExcitation`, do not change.
    """
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, SqueezeExcitation) and "forward" in vars(layer.avg_pool):
            kernel = FusedExcitation(layer)
            if kernel.known:
                layer.folded = kernel


class FusedExcitation(WeightCopies):
    """The kernels of a squeeze-and-excitation.

    Args:
        layer: Layer that the kernels compute.

    Attributes:
        known: Whether the kernels have its layers and activations.
    """

    def __init__(self, layer: SqueezeExcitation) -> None:
        super().__init__()
        first, act, second, gate = layer.excitation()
        self._first = _inner(first)
        self._second = _inner(second)
        self._act = TAILS.get(act)
        self._gate = _find_gate(gate)
        plain = _is_plain(self._first) and _is_plain(self._second)
        self.known = plain and self._act not in (None, "none", "add_relu") and self._gate is not None

    def supports(self, x: Tensor) -> bool:
        """Returns whether `run` can compute the layer for images [B, H, W, C]."""
        if not self.usable:
            return False
        dtype = compute_dtype(x)
        squeezed, channels = self._first.weight.shape[:2]
        small = channels <= _MOST_CHANNELS and squeezed <= _MOST_SQUEEZED
        return dtype in _HALF and fills_vectors(channels, dtype) and small

    def run(self, x: Tensor) -> Tensor:
        """Returns the output of the layer for images [B, H, W, C]."""
        dtype = compute_dtype(x)
        x = contiguous(cast(x, dtype))
        assert self._act is not None  # see `known`
        assert self._gate is not None
        program = kernels("excitation.cu", dtype, f"ACT={self._act.upper()}")
        batch, height, width, channels = x.shape
        squeezed = self._first.weight.shape[0]
        pixels = height * width
        vector = vector_length(dtype)
        gates = paddle.empty([batch, channels], dtype)
        operands = map(address, (x, *self.get(dtype), gates))
        sizes = map(ctypes.c_int, (pixels, channels, squeezed))
        line = map(ctypes.c_float, self._gate)
        shared = _FLOAT * (vector * _GATE_THREADS + channels + squeezed)
        block = (_GATE_THREADS, 1)
        program.launch("gates", (batch, 1), block, *operands, *sizes, *line, shared=shared)
        y = paddle.empty_like(x)
        columns = channels // vector
        across = min(columns, _WIDTH)
        down = _THREADS // across
        grid = (batch, -(-columns // across), -(-pixels // (down * _PIXELS)))
        sizes = map(ctypes.c_int, (pixels, columns))
        program.launch("multiply", grid, (across, down), *map(address, (x, gates, y)), *sizes)
        return y

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def make(self, form: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the weights in a dtype and the order of the kernels, each with its bias in float32."""
        first, second = (layer.weight.flatten(1).astype(form) for layer in (self._first, self._second))
        biases = (layer.bias.astype("float32") for layer in (self._first, self._second))
        first_bias, second_bias = biases
        return first.contiguous(), first_bias, second.transpose([1, 0]).contiguous(), second_bias


def _inner(layer: nn.Layer) -> nn.Layer:
    """Returns the layer itself, or the only one that it contains, as in EfficientNet."""
    inner = layer.sublayers()
    return inner[0] if len(inner) == 1 else layer


def _is_plain(layer: nn.Layer) -> bool:
    """Returns whether a layer is a convolution with a bias that multiplies each pixel by one matrix."""
    if type(layer) is not nn.Conv2D or layer.bias is None or "folded" not in vars(layer):
        return False  # without `folded`, the weight may change in each call, see `ppcls.arch.fused.layers`
    return layer.weight.shape[2:] == [1, 1] and groups_of(layer) == 1


def _find_gate(gate: Callable[..., Tensor]) -> tuple[float, float] | None:
    """Returns slope and offset of a hard sigmoid, slope 0 for the sigmoid, and None for other functions."""
    if gate is F.sigmoid:
        return 0.0, 0.0
    options: dict[str, Any] = {}
    if isinstance(gate, partial) and not gate.args:
        options = gate.keywords
        gate = gate.func
    if gate is not F.hardsigmoid or not set(options) <= {"slope", "offset"}:
        return None
    return options.get("slope", _SLOPE), options.get("offset", _OFFSET)

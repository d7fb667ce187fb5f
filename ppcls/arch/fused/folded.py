"""Batch norms as parts of the convolutions before them, while weights do not change.

A batch norm in evaluation mode multiplies each channel by a number and adds another one. Multiplied into the
weights of the convolution before it, and passed to it as a bias, it needs no kernel of its own, nor do ReLU
and the addition of a shortcut. In ResNet50, such kernels took 40 % of the time of an evaluation.

Decisions:
- Folded weights are copies. The parameters of the network do not change, so checkpoints do not either.
- Networks are folded only within `constant_weights`, where nothing may train them. Each use computes the
  copies again, at the same addresses, which captured CUDA graphs have.
- The first result for each shape is compared with that of the two layers, because versions of cuDNN differ
  in what they support. If the results differ, this shape uses the two layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.fused.amp import cast, compute_dtype
from ppcls.arch.fused.batch_norm import Tail
from ppcls.arch.fused.convolution import convolve_biased
from ppcls.arch.fused.cuda import CudaUnavailableError, contiguous, with_zeros
from ppcls.arch.fused.depthwise import Window, convolve_depthwise_biased, pack, supports
from ppcls.arch.kernels.geometry import geometry
from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    epsilon_of,
    explicit_padding,
    groups_of,
    running_statistics,
    stride_of,
)
from ppcls.arch.layers.norm_act import activate
from ppcls.files import print_error

Activation = Callable[[Tensor], Tensor]

_HALF = (paddle.float16, paddle.bfloat16)
_TAILS: dict[Activation | None, Tail] = {
    None: "none",
    F.relu: "relu",
    F.hardswish: "hard_swish",
    F.swish: "swish",
    F.silu: "swish",
}
_IMAGE_CHANNELS = 4  # cuDNN needs them in half precision, see `ppcls.arch.layers.conv_norm.ImageConv2D`
# Two layers round the output of the convolution to half precision, whose error is large if the mean of a
# channel is large. Other numbers than those of the two layers differ by about 100 %.
_TOLERANCE = 0.2


@contextmanager
def constant_weights(model: nn.Layer) -> Iterator[None]:
    """Uses folded weights within a ``with`` block, in which the weights of the model must not change."""
    fold(model)
    try:
        yield
    finally:
        for layers in _attached(model):
            layers.end()


def fold(model: nn.Layer) -> None:
    """Uses folded weights from now on, for models that are never trained again."""
    for layers in _attached(model):
        layers.begin()


def _attached(model: nn.Layer) -> list[FoldedNorm]:
    found = (vars(layer).get("folded") for layer in model.sublayers(include_self=True))
    return [layers for layers in found if layers is not None]


def attach(convolution: nn.Conv2D, norm: nn.BatchNorm2D) -> None:
    """Makes `constant_weights` fold a batch norm into the convolution before it.

    Args:
        convolution: NHWC convolution that pads with zeros.
        norm: Batch norm of its output.
    """
    norm.folded = FoldedNorm(convolution, norm)


class FoldedNorm:
    """A convolution and the batch norm after it, as one kernel.

    Args:
        convolution: See `attach`.
        norm: See `attach`.
    """

    def __init__(self, convolution: nn.Conv2D, norm: nn.BatchNorm2D) -> None:
        self._convolution = convolution
        self._norm = norm
        self._active = False
        self._weights: dict[Any, tuple[Tensor, Tensor]] = {}  # by dtype
        self._usable: dict[tuple[object, ...], bool] = {}  # by shape, dtype and what follows

    def begin(self) -> None:
        """Allows the use of folded weights, and computes those again that exist."""
        for dtype, buffers in self._weights.items():
            for buffer, values in zip(buffers, self._fold(dtype), strict=True):
                buffer.copy_(values, False)
        self._active = True

    def end(self) -> None:
        """Forbids the use of folded weights."""
        self._active = False

    def supports(self, x: Tensor, act: Activation | None, shortcut: Tensor | None) -> bool:
        """Returns whether `run` computes the same as the two layers.

        Args:
            x: Images, [B, H, W, C].
            act: Activation; None for none.
            shortcut: Tensor to add before the activation; None for no addition.
        """
        if not self._active or self._norm.training or paddle.is_grad_enabled():
            return False
        dtype = compute_dtype(x)
        key = (tuple(x.shape), dtype, act, shortcut is None)
        if key not in self._usable:
            known = dtype in _HALF and self._has_kernel(x, act, shortcut, dtype)
            self._usable[key] = known and self._is_right(x, act, shortcut)
        return self._usable[key]

    def run(self, x: Tensor, act: Activation | None, shortcut: Tensor | None) -> Tensor:
        """Returns ``act(norm(convolution(x)) + shortcut)``. See `supports` for the arguments.

        Raises:
            CudaUnavailableError: cuDNN has no kernel for these shapes.
        """
        dtype = compute_dtype(x)
        if dtype not in self._weights:
            self._weights[dtype] = self._fold(dtype)
        weight, bias = self._weights[dtype]
        x = contiguous(cast(x, dtype))
        if self._is_depthwise:
            padding = explicit_padding(self._convolution)
            assert padding is not None  # see `attach`
            window = Window(stride_of(self._convolution)[0], padding)
            return convolve_depthwise_biased(x, weight, bias, window, _TAILS[act])
        settings = geometry(self._convolution)
        assert settings is not None  # see `attach`
        if (missing := weight.shape[3] * settings.groups - x.shape[3]) > 0:
            x = with_zeros(x, 3, missing)
        addend = None if shortcut is None else contiguous(cast(shortcut, dtype))
        return convolve_biased(x, weight, bias, settings, addend, relu=act is F.relu)

    @property
    def _is_depthwise(self) -> bool:
        groups = groups_of(self._convolution)
        return groups > 1 and groups == self._convolution.weight.shape[0]

    def _has_kernel(self, x: Tensor, act: Activation | None, shortcut: Tensor | None, dtype: Any) -> bool:
        """Returns whether there may be a kernel. Only cuDNN itself knows about shapes."""
        layer = self._convolution
        if self._is_depthwise:
            plain = dilation_of(layer) == (1, 1) and shortcut is None and act in _TAILS
            return plain and supports(layer.weight.shape, stride_of(layer), x.shape[-1], dtype)
        settings = geometry(layer)
        return settings is not None and settings.even and act in (None, F.relu)

    def _fold(self, dtype: Any) -> tuple[Tensor, Tensor]:
        """Returns the weights in the order and dtype of the kernels, and the bias of each channel."""
        norm = self._norm
        layer = self._convolution
        mean, variance = (statistic.astype("float32") for statistic in running_statistics(norm))
        scale = norm.weight.astype("float32") / (variance + epsilon_of(norm)).sqrt()
        weight = layer.weight.astype("float32") * scale.reshape([-1, 1, 1, 1])
        shift = -mean if layer.bias is None else layer.bias.astype("float32") - mean
        bias = norm.bias.astype("float32") + shift * scale
        if self._is_depthwise:
            return pack(weight), bias
        missing = _IMAGE_CHANNELS - weight.shape[1]
        if missing > 0 and groups_of(layer) == 1:
            weight = with_zeros(weight, 1, missing)
        return weight.transpose([0, 2, 3, 1]).contiguous().astype(dtype), bias.astype(dtype)

    def _is_right(self, x: Tensor, act: Activation | None, shortcut: Tensor | None) -> bool:
        """Compares `run` with the two layers, and reports a difference."""
        expected = activate(self._norm, self._convolution(x), act, shortcut).astype("float32")
        try:
            found = self.run(x, act, shortcut).astype("float32")
            lost = self.run(paddle.full_like(x, float("nan")), act, shortcut)
        except CudaUnavailableError as error:
            self._report(x, str(error))
            return False
        difference = float(paddle.linalg.norm(found - expected))
        size = float(paddle.linalg.norm(expected))
        if not math.isfinite(size):  # the network overflows, which says nothing about the kernel
            return False
        if not difference <= _TOLERANCE * size:
            ratio = difference / size if size else math.inf
            self._report(x, f"the result with folded weights differs by {ratio:.1%}")
            return False
        if not bool(paddle.isnan(lost).all()):  # otherwise an overflow would stay unnoticed
            self._report(x, "the kernel with folded weights replaces NaN by numbers")
            return False
        return True

    def _report(self, x: Tensor, problem: str) -> None:
        shapes = f"images {list(x.shape[1:])} with weights {list(self._convolution.weight.shape)}"
        print_error(
            f"fused kernels: a convolution of {shapes} and the batch norm after it stay separate: {problem}"
        )

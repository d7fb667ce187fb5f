"""Batch norms as parts of the convolutions before them, while weights do not change.

A batch norm in evaluation mode multiplies each channel by a number and adds another one. Multiplied into the
weights of the convolution before it, and passed to it as a bias, it needs no kernel of its own, nor do ReLU
and the addition of a shortcut. In ResNet50, such kernels took 40 % of the time of an evaluation.

Decisions:
- Folded weights are copies. The parameters of the network do not change, so checkpoints do not either.
- Networks are folded only within `constant_weights`, where nothing may train them. Each use computes the
  copies again, at the same addresses, which captured CUDA graphs have.
- Versions of cuDNN differ in what they support, so `find_problem_with_bias` tries each shape once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.fused.amp import cast, compute_dtype
from ppcls.arch.fused.batch_norm import TAILS
from ppcls.arch.fused.convolution import convolve_biased, find_problem_with_bias, missing_channels
from ppcls.arch.fused.cuda import contiguous, with_zeros
from ppcls.arch.fused.depthwise import Window, convolve_depthwise_biased, pack, supports
from ppcls.arch.fused.pixels import widen
from ppcls.arch.kernels.fallback import report
from ppcls.arch.kernels.geometry import geometry
from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    epsilon_of,
    explicit_padding,
    groups_of,
    running_statistics,
    stride_of,
)

Activation = Callable[[Tensor], Tensor]

_HALF = (paddle.float16, paddle.bfloat16)


@contextmanager
def constant_weights(model: nn.Layer) -> Iterator[None]:
    """Uses folded weights within a ``with`` block, in which the weights of the model must not change."""
    fold(model)
    try:
        yield
    finally:
        for copies in _attached(model):
            copies.end()


def fold(model: nn.Layer) -> None:
    """Uses folded weights from now on, for models that are never trained again."""
    for copies in _attached(model):
        copies.begin()


def _attached(model: nn.Layer) -> list[WeightCopies]:
    attributes = (vars(layer).get("folded") for layer in model.sublayers(include_self=True))
    return [copies for copies in attributes if isinstance(copies, WeightCopies)]


def attach(convolution: nn.Conv2D, norm: nn.BatchNorm2D) -> None:
    """Makes `constant_weights` fold a batch norm into the convolution before it.

    Args:
        convolution: NHWC convolution that pads with zeros.
        norm: Batch norm of its output.
    """
    norm.folded = FoldedNorm(convolution, norm)


class WeightCopies(ABC):
    """Copies of weights in the form that a kernel reads. They are used while the weights do not change.

    A layer has them as its attribute ``folded``.
    """

    def __init__(self) -> None:
        self._active = False
        self._copies: dict[Any, tuple[Tensor, ...]] = {}

    def begin(self) -> None:
        """Allows the use of the copies, and makes those again that exist, at the same addresses."""
        for form, copies in self._copies.items():
            for copy, values in zip(copies, self.make(form), strict=True):
                copy.copy_(values, False)
        self._active = True

    def end(self) -> None:
        """Forbids the use of the copies."""
        self._active = False

    @property
    def usable(self) -> bool:
        """Whether the copies may be used now."""
        return self._active and not paddle.is_grad_enabled()

    def get(self, form: Any) -> tuple[Tensor, ...]:
        """Returns the copies, which are made at the first call; see `make`."""
        if form not in self._copies:
            self._copies[form] = self.make(form)
        return self._copies[form]

    @abstractmethod
    def make(self, form: Any) -> tuple[Tensor, ...]:
        """Returns new copies of the weights, without gradients.

        Args:
            form: Their form, such as their dtype.
        """


class OrderedWeight(WeightCopies):
    """The weights of a convolution in the order and dtype of cuDNN, which each call would transpose and cast.

    Args:
        convolution: NHWC convolution.
    """

    def __init__(self, convolution: nn.Conv2D) -> None:
        super().__init__()
        self._convolution = convolution

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def make(self, form: tuple[Any, int]) -> tuple[Tensor]:
        """Returns the weights, [C', KH, KW, C], in a dtype and with zeros up to a number of channels."""
        dtype, channels = form
        weight = self._convolution.weight
        if missing := channels - weight.shape[1]:
            weight = with_zeros(weight, 1, missing)
        return (weight.transpose([0, 2, 3, 1]).contiguous().astype(dtype),)


class FoldedNorm(WeightCopies):
    """A convolution and the batch norm after it, as one kernel.

    Args:
        convolution: See `attach`.
        norm: See `attach`.
    """

    def __init__(self, convolution: nn.Conv2D, norm: nn.BatchNorm2D) -> None:
        super().__init__()
        self._convolution = convolution
        self._norm = norm

    def supports(self, x: Tensor, act: Activation | None, shortcut: Tensor | None) -> bool:
        """Returns whether `run` can compute the same as the two layers.

        Args:
            x: Images, [B, H, W, C].
            act: Activation; None for none.
            shortcut: Tensor to add before the activation; None for no addition.
        """
        if not self.usable or self._norm.training:
            return False
        dtype = compute_dtype(x)
        if dtype not in _HALF:
            return False
        layer = self._convolution
        weight = layer.weight.shape
        if self._is_depthwise:
            known = dilation_of(layer) == (1, 1) and shortcut is None and act in TAILS
            return known and supports(weight, stride_of(layer), x.shape[-1], dtype)
        settings = geometry(layer)
        if settings is None or not settings.even or act not in (None, F.relu):
            return False
        missing = self._missing_channels
        shapes = (*x.shape[:3], x.shape[3] + missing), (weight[0], weight[1] + missing, *weight[2:])
        fused = act is F.relu, shortcut is not None
        problem = find_problem_with_bias(*shapes, dtype, settings, *fused)
        if problem is not None:
            kind = f"a convolution of {x.shape[-1]} channels with weights {list(weight)}"
            report(f"{kind} and the batch norm after it", problem, "two kernels")
        return problem is None

    def run(self, x: Tensor, act: Activation | None, shortcut: Tensor | None) -> Tensor:
        """Returns ``act(norm(convolution(x)) + shortcut)``. See `supports` for the arguments.

        Raises:
            CudaUnavailableError: cuDNN has no kernel for these shapes.
        """
        dtype = compute_dtype(x)
        weight, bias = self.get(dtype)
        x = contiguous(cast(x, dtype))
        if self._is_depthwise:
            padding = explicit_padding(self._convolution)
            assert padding is not None  # see `attach`
            window = Window(stride_of(self._convolution)[0], padding)
            return convolve_depthwise_biased(x, weight, bias, window, TAILS[act])
        settings = geometry(self._convolution)
        assert settings is not None  # see `attach`
        if missing := self._missing_channels:
            x = widen(x, x.shape[3] + missing)
        addend = None if shortcut is None else contiguous(cast(shortcut, dtype))
        return convolve_biased(x, weight, bias, settings, addend, relu=act is F.relu)

    @property
    def _is_depthwise(self) -> bool:
        groups = groups_of(self._convolution)
        return groups > 1 and groups == self._convolution.weight.shape[0]

    @property
    def _missing_channels(self) -> int:
        """Number of channels of zeros that cuDNN needs in half precision, see `ImageConv2D`."""
        layer = self._convolution
        return missing_channels(layer.weight.shape, gradients=False) if groups_of(layer) == 1 else 0

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def make(self, form: Any) -> tuple[Tensor, Tensor]:
        """Returns the weights in the order and dtype of the kernels, and the bias of each channel."""
        # Computed on the GPU, unlike `ppcls.arch.layers.reparameterize.fold`: it runs before each evaluation.
        norm = self._norm
        layer = self._convolution
        mean, variance = (statistic.astype("float32") for statistic in running_statistics(norm))
        scale = norm.weight.astype("float32") / (variance + epsilon_of(norm)).sqrt()
        weight = layer.weight.astype("float32") * scale.reshape([-1, 1, 1, 1])
        shift = -mean if layer.bias is None else layer.bias.astype("float32") - mean
        bias = norm.bias.astype("float32") + shift * scale
        if self._is_depthwise:
            return pack(weight), bias
        if missing := self._missing_channels:
            weight = with_zeros(weight, 1, missing)
        return weight.transpose([0, 2, 3, 1]).contiguous().astype(form), bias.astype(form)

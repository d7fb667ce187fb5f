"""Dropout and stochastic depth (Huang et al. 2016, https://arxiv.org/abs/1603.09382).

Layers draw from Paddle's generator by default. With `StepMasks`, they read factors that are drawn before each
training step from the seed and the number of the update. The factors stay in the same memory, so a CUDA graph
can replay the step, and a resumed run draws the same factors. A compiled model gets them as inputs, because
its program would keep tensors that layers return themselves as constants (`ppcls.engine.core.compiled`).

A feature map needs `image_dropout`, which drops the same pixels in both layouts. With a mask that is drawn in
the order of memory, a run in NHWC would drop other pixels than the same run in NCHW, so `autotune` could not
compare their losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Literal, NamedTuple, get_args

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

_DropoutMode = Literal["upscale_in_train", "downscale_in_infer"]
_DROPOUT_MODES = get_args(_DropoutMode)
_TO_NCHW = [0, 3, 1, 2]
_TO_NHWC = [0, 2, 3, 1]


class DropPath(nn.Layer):  # type: ignore[misc]
    """Sets the residuals of random images to zero in training, and scales up the residuals of other images.

    Args:
        rate: Probability of skipping the residual of an image, 0 to 1.

    Attributes:
        masks: Source of random factors; None to draw from Paddle's generator.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.masks: StepMasks | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, ...] to the same shape."""
        if self.masks is None or not self.training or not self.rate:
            return F.dropout(x, self.rate, axis=0, training=self.training) if self.rate else x
        factors = self.factors(x.shape[0])
        assert factors is not None
        return x * factors.reshape([-1, *[1] * (x.ndim - 1)]).astype(x.dtype)

    def factors(self, batch: int) -> Tensor | None:
        """Returns the factors of the residuals, [B] float32; None if all residuals are kept."""
        if not self.training or not self.rate:
            return None
        if self.masks is None:
            return F.dropout(paddle.ones([batch]), self.rate)
        return self.masks.draw([batch], self.rate)


class ChannelsLastDropout(nn.Dropout):  # type: ignore[misc]
    """Dropout of NHWC feature maps, which draws its mask in NCHW. The arguments are those of `nn.Dropout`.

    Attributes:
        masks: See `DropPath`.
    """

    def __init__(self, rate: float, mode: _DropoutMode) -> None:
        super().__init__(rate, mode=mode)
        self.masks: StepMasks | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to the same shape."""
        if not self.training or not self.p:
            return nn.Dropout.forward(self, x)  # Paddle 2.6 cannot compile super()
        if self.masks is None:
            factors = nn.Dropout.forward(self, paddle.ones_like(x).transpose(_TO_NCHW))
        else:
            batch, height, width, channels = x.shape
            factors = _draw_factors(self, self.masks, [batch, channels, height, width]).astype(x.dtype)
        return x * factors.transpose(_TO_NHWC)


class Draw(NamedTuple):
    """Arguments of a call of `StepMasks.draw`."""

    shape: list[int]
    rate: float
    scale: float


class StepMasks:
    """Random factors of a training step, drawn from a seed, the rank and the number of the update.

    Args:
        seed: Seed of the run.
        rank: Rank of this process, which processes other images than the other ranks.

    Attributes:
        call: Number of calls of `draw` in this forward pass. Set it back to repeat a part of the pass.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self._key = (seed, rank)
        self._update = -1
        self._step = 0
        self.call = 0
        self._seeds: list[int] = []
        self._drawn: list[tuple[Tensor, Draw]] = []  # factors and arguments of each call
        self._recorded: list[Draw] | None = None
        self._inputs: Sequence[Tensor] | None = None  # of the program that is traced

    def begin_step(self, update: int) -> None:
        """Draws the factors of the next step. Must be called before each step.

        Args:
            update: Number of the update to which the step belongs. Further steps of the same update draw
                other factors.
        """
        self._step = self._step + 1 if update == self._update else 0
        self._update = update
        self._seeds = []
        self.begin_forward()
        for call, (factors, draw) in enumerate(self._drawn):
            factors.copy_(self._draw(call, draw), False)

    def begin_forward(self) -> None:
        """Makes the next call of `draw` return the first factors of the step.

        A capture may run the forward pass several times in a step.
        """
        self.call = 0

    def draw(self, shape: Sequence[int], rate: float, scale: float | None = None) -> Tensor:
        """Returns factors of the given shape, float32 without a gradient.

        The result of the n-th call in a step has the same address in all steps, if the shapes are the same.

        Args:
            shape: Shape of the factors.
            rate: Probability of the factor 0.
            scale: The other factor; by default 1 / (1 - rate), which preserves the mean.
        """
        if scale is None:
            scale = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
        draw = Draw(list(shape), rate, scale)
        call = self.call
        self.call += 1
        if self._inputs is not None:
            factors = self._inputs[call]
            assert list(factors.shape) == draw.shape
            return factors
        if self._recorded is not None:
            self._recorded.append(draw)
        if call < len(self._drawn):
            factors, drawn = self._drawn[call]
            if drawn == draw:
                return factors
        factors = self._draw(call, draw)
        self._drawn[call : call + 1] = [(factors, draw)]
        return factors

    @contextmanager
    def recorded(self) -> Iterator[list[Draw]]:
        """Returns a context in which a forward pass adds the arguments of its calls of `draw` to a list."""
        self.begin_forward()
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None
            self.begin_forward()

    @contextmanager
    def replaced(self, inputs: Sequence[Tensor]) -> Iterator[None]:
        """Returns a context in which the calls of `draw` in a forward pass return ``inputs``, in order."""
        self.begin_forward()
        self._inputs = inputs
        try:
            yield
        finally:
            self._inputs = None
        assert self.call == len(inputs)  # the pass calls `draw` as often as the one that was recorded

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _draw(self, call: int, draw: Draw) -> Tensor:
        uniform = paddle.uniform(draw.shape, "float32", 0.0, 1.0, self._seed(call))
        return (uniform >= draw.rate).astype("float32") * draw.scale

    def _seed(self, call: int) -> int:
        """Returns the seed of a call in the current step, at least 1 (0 stands for Paddle's generator)."""
        if call >= len(self._seeds):
            entropy = [*self._key, self._update + 1, self._step]
            words = np.random.SeedSequence(entropy).generate_state(2 * call + 8)
            self._seeds = (words % (2**31 - 2) + 1).tolist()
        return self._seeds[call]


def attach_masks(model: nn.Layer, masks: StepMasks) -> int:
    """Makes the random layers of a model read factors from ``masks``, and returns their number."""
    attached = 0
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, DropPath | ChannelsLastDropout):
            layer.masks = masks
        elif _is_plain_dropout(layer):
            layer.masks = masks
            layer.forward = MethodType(_dropout, layer)
        else:
            continue
        attached += 1
    return attached


def draws_random_numbers(model: nn.Layer) -> bool:
    """Returns whether a model draws numbers from Paddle's generator in training.

    Each replay of a CUDA graph would draw the same numbers.
    """
    return any(
        "Drop" in type(layer).__name__ and getattr(layer, "masks", None) is None
        for layer in model.sublayers(include_self=True)
    )


def _is_plain_dropout(layer: nn.Layer) -> bool:
    return type(layer) is nn.Dropout and layer.axis is None and layer.mode in _DROPOUT_MODES


def _dropout(layer: nn.Dropout, x: Tensor) -> Tensor:
    if not layer.training or not layer.p:
        return nn.Dropout.forward(layer, x)
    return x * _draw_factors(layer, layer.masks, x.shape).astype(x.dtype)


def _draw_factors(layer: nn.Dropout, masks: StepMasks, shape: Sequence[int]) -> Tensor:
    scale = None if layer.mode == "upscale_in_train" else 1.0
    return masks.draw(shape, layer.p, scale)


def drop_paths(rate: float, depth: int) -> list[float]:
    """Returns the skip rates of ``depth`` blocks, which increase linearly from 0 to ``rate``."""
    return [rate * i / max(depth - 1, 1) for i in range(depth)]


def dropout(rate: float) -> nn.Layer:
    """Returns a dropout layer. For rate 0, returns the identity, which draws no random numbers."""
    return nn.Dropout(rate) if rate else nn.Identity()


def image_dropout(
    rate: float, data_format: Literal["NCHW", "NHWC"], mode: _DropoutMode = "upscale_in_train"
) -> nn.Layer:
    """Returns a dropout layer for feature maps with several pixels. For rate 0, returns the identity."""
    if data_format == "NCHW" or not rate:
        return nn.Dropout(rate, mode=mode) if rate else nn.Identity()
    return ChannelsLastDropout(rate, mode)

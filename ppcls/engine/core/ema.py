"""Exponential moving average of the weights (Polyak & Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

import paddle
from paddle import nn


class Ema:
    """Moving average of a model's weights: ``average = decay * average + (1 - decay) * weight``.

    Floating-point buffers (BatchNorm's statistics) are averaged too; frozen parameters are not. Averages are
    float32 whatever the model's dtype. With ``warmup`` the decay is ``min(decay, (1 + updates) / (10 +
    updates))``, as in TensorFlow's ExponentialMovingAverage, so that the first weights are soon forgotten. It
    is a function of the number of updates, and needs no state of its own.

    Args:
        model: Bare model. The average starts as a copy of its current weights.
        decay: Decay in [0, 1).
        masters: Float32 weights that an optimizer keeps of half-precision ones, by the model's names. They
            are averaged instead of their rounded copies, which small updates do not change.
        warmup: Whether the decay rises to ``decay``.
        frozen: Names of parameters and buffers that do not change.
    """

    def __init__(
        self,
        model: nn.Layer,
        decay: float,
        masters: Mapping[str, paddle.Tensor] | None = None,
        *,
        warmup: bool = False,
        frozen: Container[str] = (),
    ) -> None:
        self._decay, self._warmup = decay, warmup
        self._current_decay = paddle.full([], decay, "float32")  # a tensor, because CUDA graphs read it
        self._live = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
        self._exact = {**self._live, **(masters or {})}
        self._average = {key: value.detach().astype("float32").clone() for key, value in self._exact.items()}
        self._averaged = [key for key in self._exact if key not in frozen]

    def decay_at(self, updates: int) -> float:
        """Returns the decay after ``updates`` optimizer updates."""
        return min(self._decay, (1 + updates) / (10 + updates)) if self._warmup else self._decay

    def prepare(self, updates: int) -> None:
        """Sets the decay of the next `update`, the one after ``updates`` optimizer updates."""
        if self._warmup:
            self._current_decay.fill_(self.decay_at(updates))

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def update(self) -> None:
        """Adds the model's current weights to the average; device work only."""
        for key in self._averaged:
            average, exact = self._average[key], self._exact[key].astype("float32")
            if self._warmup:
                average.multiply_(self._current_decay).add_(exact * (1.0 - self._current_decay))
            else:
                average.scale_(self._decay).add_(exact * (1.0 - self._decay))

    def state_dict(self) -> dict[str, paddle.Tensor]:
        """Returns the average itself, not a copy, under the model's names."""
        return self._average

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replaces the model's weights by the average within the block."""
        weights = {key: value.clone() for key, value in self._live.items()}
        self._fill(self._average)
        try:
            yield
        finally:
            self._fill(weights)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _fill(self, source: dict[str, paddle.Tensor]) -> None:
        for key, live in self._live.items():
            live.copy_(source[key].astype(live.dtype), True)

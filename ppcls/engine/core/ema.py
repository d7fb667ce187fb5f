"""Exponential moving average of the weights (Polyak & Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

import paddle
from paddle import nn


class Ema:
    """Keeps the average beside the model: ``average = decay * average + (1 - decay) * weight``.

    Floating buffers (BatchNorm's statistics) are averaged alike, frozen parameters are left as they are.
    Averages are float32 whatever the model. With ``warmup`` the decay is ``min(decay, (1 + updates) / (10 +
    updates))``, as in TensorFlow's ExponentialMovingAverage, so that the first weights are soon forgotten. As
    a function of the update it needs no state of its own.

    Args:
        model: The bare model; the average starts as a copy of its present weights.
        decay: In [0, 1).
        masters: Under the model's names, the float32 weights that an optimizer keeps of half-precision ones.
            They are averaged in place of their roundings, which small updates don't reach.
        warmup: Whether the decay rises to ``decay``.
        frozen: Names of what does not change.
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
        # On the device, for a recorded step reads it anew.
        self._now = paddle.full([], decay, "float32")
        self._live = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
        self._exact = {**self._live, **(masters or {})}
        self._average = {key: value.detach().astype("float32").clone() for key, value in self._exact.items()}
        self._moving = [key for key in self._exact if key not in frozen]

    def decay_at(self, updates: int) -> float:
        """Returns the decay after so many optimizer updates."""
        return min(self._decay, (1 + updates) / (10 + updates)) if self._warmup else self._decay

    def begin(self, updates: int) -> None:
        """Comes before `update`, after so many optimizer updates; a recorded step calls it live."""
        if self._warmup:
            self._now.fill_(self.decay_at(updates))

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def update(self) -> None:
        """Takes in the model's present weights."""
        for key in self._moving:
            average, exact = self._average[key], self._exact[key].astype("float32")
            if self._warmup:
                average.multiply_(self._now).add_(exact * (1.0 - self._now))
            else:
                average.scale_(self._decay).add_(exact * (1.0 - self._decay))

    def state_dict(self) -> dict[str, paddle.Tensor]:
        """Returns the average itself, no copy, under the model's own names."""
        return self._average

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Has the model use the average within the block."""
        raw = {key: value.clone() for key, value in self._live.items()}
        self._fill(self._average)
        try:
            yield
        finally:
            self._fill(raw)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _fill(self, source: dict[str, paddle.Tensor]) -> None:
        for key, live in self._live.items():
            live.copy_(source[key].astype(live.dtype), True)

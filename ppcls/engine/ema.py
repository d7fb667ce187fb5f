"""Exponential moving average of the weights (Polyak & Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import paddle
from paddle import nn


class Ema:
    """Keeps the average beside the model: ``average = decay * average + (1 - decay) * weight``.

    Floating buffers (BatchNorm's statistics) are averaged alike. Averages are float32 whatever the model.

    Args:
        model: The bare model; the average starts as a copy of its present weights.
        decay: In [0, 1).
        masters: Under the model's names, the float32 weights that an optimizer keeps of half-precision ones.
            They are averaged in place of their roundings, which small updates don't reach.
    """

    def __init__(
        self, model: nn.Layer, decay: float, masters: Mapping[str, paddle.Tensor] | None = None
    ) -> None:
        self._decay = decay
        self._live = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
        self._exact = {**self._live, **(masters or {})}
        self._average = {key: value.detach().astype("float32").clone() for key, value in self._exact.items()}

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def update(self) -> None:
        """Takes in the model's present weights."""
        for key, exact in self._exact.items():
            average = self._average[key]
            average.scale_(self._decay).add_(exact.astype("float32") * (1.0 - self._decay))

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

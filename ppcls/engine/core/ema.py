"""Averages of the weights, with which models are evaluated.

`Ema` is the exponential moving average (Polyak & Juditsky 1992), and `ScheduleFreeAverage` the average of an
optimizer that computes one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import paddle
from paddle import nn

from ppcls.errors import counted
from ppcls.optimizer.functional import SPREAD, ScheduleFreeAdamWOptimizer
from ppcls.optimizer.state import MASTER, optimizer_state

INITIAL_SHARE = 0.05  # largest share of the initial weights in an average that represents the training


class Ema:
    """Moving average of a model's weights: ``average = decay * average + (1 - decay) * weight``.

    Floating-point buffers (BatchNorm's statistics) are averaged too; frozen parameters are not. Averages are
    float32 for every dtype of the model. With ``warmup`` the decay is ``min(decay, (1 + updates) / (10 +
    updates))``, as in TensorFlow's ExponentialMovingAverage, so the initial weights lose their influence
    quickly. The decay depends only on the number of updates, so checkpoints do not store it.

    Args:
        model: Bare model. The average starts as a copy of its current weights.
        decay: Decay in [0, 1).
        masters: Float32 master weights of the optimizer, keyed by the names of the half-precision weights.
            The master weights are averaged, because small updates do not change the rounded weights.
        warmup: Whether the decay starts low and rises to ``decay``.
        frozen: Names of parameters and buffers that training does not change.
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
        self._decay = decay
        self._warmup = warmup
        self._current_decay = paddle.full([], decay, "float32")  # a tensor, because CUDA graphs read it
        self._live = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
        self._exact = {**self._live, **(masters or {})}
        self._average = {key: value.detach().astype("float32").clone() for key, value in self._exact.items()}
        self._averaged = [key for key in self._exact if key not in frozen]

    def decay_at(self, updates: int) -> float:
        """Returns the decay after ``updates`` optimizer updates."""
        return min(self._decay, (1 + updates) / (10 + updates)) if self._warmup else self._decay

    def initial_share(self, updates: int) -> float:
        """Returns the share of the initial weights in the average after ``updates`` updates, 0 to 1."""
        if not self._warmup:
            return float(self._decay**updates)
        done = np.arange(1, updates + 1)
        return float(np.minimum(self._decay, (1 + done) / (10 + done)).prod())

    def describe(self, epochs: int, updates_per_epoch: int) -> list[str]:
        """Returns a line for the log if the initial weights still count when the average is evaluated.

        Args:
            epochs: Epochs of the run.
            updates_per_epoch: Updates per epoch.
        """
        total = epochs * updates_per_epoch
        share = self.initial_share(total)
        if share > INITIAL_SHARE:
            decay = INITIAL_SHARE ** (1 / total)
            return [
                f"warning: evaluations and the best model use the moving average, which after all "
                f"{counted(total, 'update')} of this run is still {share:.0%} initial weights, because "
                f"EMA.decay is {self._decay:g}; set EMA.warmup=True, or EMA.decay={decay:.3g} or less, or "
                "train longer"
            ]
        if self._warmup or self.initial_share(updates_per_epoch) <= INITIAL_SHARE:
            return []
        needed = math.ceil(math.log(INITIAL_SHARE) / math.log(self._decay) / updates_per_epoch)
        return [
            f"evaluations before epoch {needed} partly rate the initial weights, which are more than "
            f"{INITIAL_SHARE:.0%} of the moving average (EMA.decay={self._decay:g}); EMA.warmup=True avoids "
            "this"
        ]

    def prepare(self, updates: int) -> None:
        """Sets the decay that the next call of `update` uses.

        Args:
            updates: Number of finished optimizer updates, including the current one.
        """
        if self._warmup:
            self._current_decay.fill_(self.decay_at(updates))

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def update(self) -> None:
        """Adds the model's current weights to the average. Does not wait for the device."""
        for key in self._averaged:
            average = self._average[key]
            exact = self._exact[key].astype("float32")
            if self._warmup:
                average.multiply_(self._current_decay).add_(exact * (1.0 - self._current_decay))
            else:
                average.scale_(self._decay).add_(exact * (1.0 - self._decay))

    def state_dict(self) -> dict[str, paddle.Tensor]:
        """Returns the average by the names of the model's tensors; buffers themselves, not copies."""
        return self._average

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def keep_statistics(self, frozen: Container[str] = ()) -> None:
        """Replaces the averages of buffers by the buffers of the model, to which the average is applied.

        Args:
            frozen: Names of tensors whose averages do not change.
        """
        for key, live in self._live.items():
            if live.stop_gradient and key not in frozen:
                self._average[key].copy_(live.astype("float32"), True)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Returns a context in which the model has the averaged weights."""
        weights = {key: value.clone() for key, value in self._live.items()}
        self._fill(self.state_dict())
        try:
            yield
        finally:
            self._fill(weights)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _fill(self, source: dict[str, paddle.Tensor]) -> None:
        for key, live in self._live.items():
            live.copy_(source[key].astype(live.dtype), True)


class ScheduleFreeAverage(Ema):
    """Average of the weights that `ScheduleFreeAdamWOptimizer` computes.

    The statistics of BatchNorm are the current ones. They belong to the weights of training, of which the
    average is a share of ``beta1``.

    Args:
        model: Bare model.
        optimizer: Optimizer of the model.
        frozen: Names of parameters and buffers that training does not change.
    """

    def __init__(
        self, model: nn.Layer, optimizer: ScheduleFreeAdamWOptimizer, frozen: Container[str] = ()
    ) -> None:
        super().__init__(model, decay=0.0, frozen=frozen)  # so that buffers are the current ones
        self._model = model
        self._optimizer = optimizer
        self._trained = {
            name: weight for name, weight in model.named_parameters() if not weight.stop_gradient
        }
        self._averaged = [key for key in self._averaged if key not in self._trained]
        for name in self._trained:
            del self._average[name]

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def state_dict(self) -> dict[str, paddle.Tensor]:
        """Returns the average by the names of the model's tensors; buffers themselves, not copies."""
        state = optimizer_state(self._optimizer, self._model)
        averages = {
            name: self._optimizer.average(state.get(f"{name}/{MASTER}", weight), state[f"{name}/{SPREAD}"])
            for name, weight in self._trained.items()
        }
        return {**self._average, **averages}

"""The state of the schedule ``ReduceOnPlateau``: it lowers the rate when evaluations stop improving."""

from __future__ import annotations

import math
from typing import Any

from ppcls.config.sections.schedule import ReduceOnPlateau
from ppcls.optimizer.schedule import LearningRate


class Plateau:
    """Counts evaluations without improvement, as `paddle.optimizer.lr.ReduceOnPlateau` does.

    Args:
        metric: Name of the metric that compares evaluations in mode ``max``.

    Attributes:
        of: Name of the value that is compared: ``loss`` or the metric.
    """

    def __init__(self, spec: ReduceOnPlateau, metric: str | None = None) -> None:
        self._spec = spec
        self.of = "loss" if spec.mode == "min" else metric
        self._share = 1.0  # of learning_rate
        self._best: float | None = None
        self._bad = self._cooldown = 0

    def applied(self, schedule: LearningRate) -> LearningRate:
        """Returns the schedule multiplied by the current share of the rate at each call."""
        return lambda update: self._share * schedule(update)

    def see(self, loss: float, metric: float, epoch: int) -> str | None:
        """Records an evaluation.

        Args:
            loss: Loss of the evaluation; the same number on every rank.
            metric: First metric, with the sign that makes higher values better.
            epoch: Number of finished epochs.

        Returns:
            A line for the log if the rate changes.
        """
        spec = self._spec
        if epoch < spec.warmup_epoch:
            return None
        if self._cooldown:
            self._cooldown -= 1
            return None
        value = loss if spec.mode == "min" else metric
        if self._is_better(value):
            self._best, self._bad = value, 0
            return None
        self._bad += 1
        if self._bad <= spec.patience:
            return None
        self._bad, self._cooldown = 0, spec.cooldown
        return self._lower()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain data."""
        return {
            "share": self._share,
            "best": self._best,
            "bad": self._bad,
            "cooldown": self._cooldown,
            "of": self.of,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state of `state_dict`, but not the best value if it is of another metric.

        Raises:
            KeyError, TypeError, ValueError: ``state`` is not such a state.
        """
        share, best = float(state["share"]), state["best"]
        bad, cooldown = int(state["bad"]), int(state["cooldown"])
        best = None if best is None else float(best)
        if not 0 <= share <= 1 or bad < 0 or cooldown < 0 or not math.isfinite(best or 0.0):
            raise ValueError(f"invalid state of ReduceOnPlateau: {state}")
        if state.get("of", self.of) != self.of:
            best, bad = None, 0
        self._share, self._best, self._bad, self._cooldown = share, best, bad, cooldown

    def _is_better(self, value: float) -> bool:
        spec, best = self._spec, self._best
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        margin = spec.threshold * abs(best) if spec.threshold_mode == "rel" else spec.threshold
        return value < best - margin if spec.mode == "min" else value > best + margin

    def _lower(self) -> str | None:
        spec = self._spec
        rate = self._share * spec.learning_rate
        lower = max(rate * spec.factor, spec.min_lr)
        if rate - lower <= spec.epsilon:
            return None
        self._share = lower / spec.learning_rate
        name = "loss" if spec.mode == "min" else "metric"
        return (
            f"ReduceOnPlateau: {spec.patience + 1} evaluation{'s' if spec.patience else ''} without a better "
            f"{name} than {self._best}: learning rate x {lower / rate:.4g}, now {self._share:.4g} of the "
            "config's"
        )

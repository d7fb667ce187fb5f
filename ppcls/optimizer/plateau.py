"""A learning rate that falls when evaluations become no better: the state of ``ReduceOnPlateau``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ppcls.config.sections.schedule import ReduceOnPlateau


class Plateau:
    """Counts evaluations that are no better than the best, as paddle.optimizer.lr.ReduceOnPlateau does.

    Args:
        spec: The schedule's config.
        metric: Name of the metric that evaluations are compared by where it is not the loss.

    Attributes:
        of: Name of what is compared.
    """

    def __init__(self, spec: ReduceOnPlateau, metric: str | None = None) -> None:
        self._spec = spec
        self.of = "loss" if spec.mode == "min" else metric
        self._share = 1.0  # of learning_rate
        self._best: float | None = None
        self._bad = self._cooldown = 0

    def applied(self, schedule: Callable[[int], float]) -> Callable[[int], float]:
        """Returns the schedule times what is left of the rate at the time of the call."""
        return lambda update: self._share * schedule(update)

    def see(self, loss: float, metric: float, epoch: int) -> str | None:
        """Takes in an evaluation.

        Args:
            loss: Of the evaluation; every process must give the same numbers.
            metric: Its first one, turned such that higher is better.
            epoch: Epochs done.

        Returns:
            A line for the log where the rate changes.
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
        """Returns what must be remembered, as plain data."""
        return {
            "share": self._share,
            "best": self._best,
            "bad": self._bad,
            "cooldown": self._cooldown,
            "of": self.of,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave; evaluations that were compared by something else don't count.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        share, best = float(state["share"]), state["best"]
        bad, cooldown = int(state["bad"]), int(state["cooldown"])
        best = None if best is None else float(best)
        if not 0 <= share <= 1 or bad < 0 or cooldown < 0 or not math.isfinite(best or 0.0):
            raise ValueError(f"not of a plateau: {state}")
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
        what = "loss" if spec.mode == "min" else "metric"
        return (
            f"ReduceOnPlateau: {spec.patience + 1} evaluation{'s' if spec.patience else ''} without a better "
            f"{what} than {self._best}: learning rate x {lower / rate:.4g}, now {self._share:.4g} of the "
            "config's"
        )

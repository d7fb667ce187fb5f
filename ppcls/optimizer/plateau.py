"""The schedule ``ReduceOnPlateau``, which lowers the learning rate when evaluations stop improving."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppcls.optimizer.schedules import LearningRate, ReduceOnPlateau


class Plateau:
    """Counts evaluations without improvement, like `paddle.optimizer.lr.ReduceOnPlateau`.

    Args:
        spec: Settings of the schedule.
        warmup: Number of epochs whose evaluations are ignored: the warm-up of the run, which is shorter than
            ``spec.warmup_epoch`` in a short run.
        metric: Name of the metric to compare in mode ``max``. In mode ``min``, the loss is compared.

    Attributes:
        of: Name of the compared value: ``loss``, or the name of the metric.
    """

    def __init__(self, spec: ReduceOnPlateau, warmup: float, metric: str | None = None) -> None:
        self._spec = spec
        self._warmup = warmup
        self.of = "loss" if spec.mode == "min" else metric
        self._share = 1.0  # factor for the config's learning_rate
        self._best: float | None = None
        self._bad = self._cooldown = 0

    def applied(self, schedule: LearningRate) -> LearningRate:
        """Returns a schedule that multiplies ``schedule`` by the current factor."""
        return lambda update: self._share * schedule(update)

    def see(self, loss: float, metric: float, epoch: int) -> str | None:
        """Records an evaluation. Lowers the learning rate after too many evaluations without improvement.

        Args:
            loss: Loss of the evaluation, which is the same on all ranks.
            metric: Value of the first metric, with the sign for which higher values are better.
            epoch: Number of finished epochs.

        Returns:
            A line for the log if the learning rate changes; otherwise None.
        """
        spec = self._spec
        if epoch < self._warmup:
            return None
        if self._cooldown:
            self._cooldown -= 1
            return None
        value = loss if spec.mode == "min" else metric
        if self._is_better(value):
            self._best = value
            self._bad = 0
            return None
        self._bad += 1
        if self._bad <= spec.patience:
            return None
        self._bad = 0
        self._cooldown = spec.cooldown
        return self._lower()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as a dictionary of numbers and strings, for a checkpoint."""
        return {
            "share": self._share,
            "best": self._best,
            "bad": self._bad,
            "cooldown": self._cooldown,
            "of": self.of,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state that `state_dict` returned. Ignores the best value of another metric.

        Raises:
            KeyError, TypeError, ValueError: ``state`` is invalid.
        """
        # Everything is read and checked before anything is set, so that an invalid state changes nothing.
        share = float(state["share"])
        best = state["best"]
        bad = int(state["bad"])
        cooldown = int(state["cooldown"])
        best = None if best is None else float(best)
        if not 0 <= share <= 1 or bad < 0 or cooldown < 0 or not math.isfinite(best or 0.0):
            raise ValueError(
                "expected share from 0 to 1, bad and cooldown >= 0, and a finite best, got "
                f"{share}, {bad}, {cooldown} and {best}"
            )
        if state.get("of", self.of) != self.of:
            best = None
            bad = 0
        self._share = share
        self._best = best
        self._bad = bad
        self._cooldown = cooldown

    def _is_better(self, value: float) -> bool:
        spec = self._spec
        best = self._best
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
            f"{name} than {self._best}: learning rate x {lower / rate:.4g}, now {self._share:.4g} x the "
            "config's value"
        )

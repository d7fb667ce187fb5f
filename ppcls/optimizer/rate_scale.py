"""Scales learning rates with the number of images per update."""

from __future__ import annotations

from dataclasses import dataclass

from ppcls.errors import counted
from ppcls.optimizer.schedules import LearningRate


@dataclass(frozen=True)
class RateScale:
    """Scales learning rates with the global batch (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).

    Attributes:
        images: Number of images per step on all ranks together.
        processes: World size.
        steps: Number of steps per update, whose gradients are accumulated.
        base: Number of images per update for which the config's learning rates were chosen.
    """

    images: int
    processes: int
    steps: int
    base: int

    @property
    def factor(self) -> float:
        """Factor for all learning rates, including those of the warm-up: images per update / `base`."""
        return self.images * self.steps / self.base

    def applied(self, schedule: LearningRate) -> LearningRate:
        """Returns ``schedule`` multiplied by the factor."""
        return lambda update: self.factor * schedule(update)

    def describe(self) -> str:
        """Returns a line for the log that explains the factor."""
        return (
            f"learning rates x {self.factor:.6g}: {counted(self.images * self.steps, 'image')} per update "
            f"({self.images} per step on {counted(self.processes, 'process')} x update_freq {self.steps}), "
            f"Global.base_batch_size {self.base}"
        )

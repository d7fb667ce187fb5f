"""The learning rate scaled with the global batch (Goyal et al. 2017, https://arxiv.org/abs/1706.02677)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RateScale:
    """The factor of every learning rate, the warm-up's too: images an optimizer update over ``base``.

    Attributes:
        images: Of a step, over all processes.
        processes: That train together.
        steps: An optimizer update, where gradients are accumulated.
        base: Images an update that the config's rates are meant for.
    """

    images: int
    processes: int
    steps: int
    base: int

    @property
    def factor(self) -> float:
        """What rates are multiplied by."""
        return self.images * self.steps / self.base

    def applied(self, schedule: Callable[[int], float]) -> Callable[[int], float]:
        """Returns the scaled schedule."""
        return lambda update: self.factor * schedule(update)

    def describe(self) -> str:
        """Returns one line for the log."""
        return (
            f"learning rates x {self.factor:.6g}: {self.images * self.steps} images an update "
            f"({self.images} a step over {self.processes} process{'es' if self.processes > 1 else ''} x "
            f"update_freq {self.steps}), Global.base_batch_size {self.base}"
        )

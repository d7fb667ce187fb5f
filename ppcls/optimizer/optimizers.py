"""The optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Bound, Decay, NonNegative, Positive
from ppcls.config.base.problems import problem
from ppcls.optimizer.base import CoupledOptimizer, DecoupledOptimizer
from ppcls.optimizer.schedules import Constant

if TYPE_CHECKING:
    from paddle.optimizer import Optimizer as PaddleOptimizer


class SGD(CoupledOptimizer):
    """Stochastic gradient descent: ``p -= lr * g`` for a parameter ``p`` with gradient ``g``."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns `paddle.optimizer.SGD`; see `CoupledOptimizer`."""
        from paddle import optimizer

        return optimizer.SGD(**common)


class Momentum(CoupledOptimizer):
    """SGD with momentum: ``v = momentum * v + g``, then ``p -= lr * v``.

    With Nesterov momentum: ``p -= lr * (g + momentum * v)``.
    """

    momentum: Decay = 0.9
    """Factor of the previous velocity in each update."""
    use_nesterov: bool = False
    """Use Nesterov momentum."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns `paddle.optimizer.Momentum`; see `CoupledOptimizer`."""
        from paddle import optimizer

        return optimizer.Momentum(momentum=self.momentum, use_nesterov=self.use_nesterov, **common)


class Adam(CoupledOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    beta1: Decay = 0.9
    """Decay of the moving average of the gradient."""
    beta2: Decay = 0.999
    """Decay of the moving average of the squared gradient."""
    epsilon: Positive = 1e-8
    """Number to add to the denominator, the root of the averaged squared gradient."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns `paddle.optimizer.Adam`; see `CoupledOptimizer`."""
        from paddle import optimizer

        return optimizer.Adam(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, **common)


class AdamW(DecoupledOptimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2)."""

    beta1: Decay = 0.9
    """Decay of the moving average of the gradient."""
    beta2: Decay = 0.999
    """Decay of the moving average of the squared gradient."""
    epsilon: Positive = 1e-8
    """Number to add to the denominator, the root of the averaged squared gradient."""
    layerwise_decay: Annotated[float, Bound(gt=0, le=1)] | None = None
    """Ratio of the learning rates of a block and the next block (Howard & Ruder 2018, section 3.2). With `n`
    blocks, the factor of the learning rate is 1 for the head, `layerwise_decay ** (n - i)` for block `i`
    (from 0), and `layerwise_decay ** (n + 1)` for layers before the blocks, such as embeddings. Default: 1
    for all layers."""

    @property
    def block_decay(self) -> float | None:
        """Ratio of the learning rates of a block and the next block: ``layerwise_decay``."""
        return self.layerwise_decay

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns Paddle's AdamW with a weight decay per parameter; see `DecoupledOptimizer`."""
        from ppcls.optimizer.functional import AdamWPerParameter

        return AdamWPerParameter(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, **common)


class AdamWDL(AdamW):
    """PaddleClas's name for `AdamW`, for use with ``layerwise_decay``."""

    filter_bias_and_bn: bool = True
    """Apply no weight decay to one-dimensional parameters and biases."""

    def exempts(self, name: str, flat: bool) -> bool:
        """Returns whether a parameter has no weight decay; see `Optimizer.exempts`."""
        is_excluded = self.filter_bias_and_bn and (flat or name.endswith(".bias"))
        return is_excluded or super().exempts(name, flat)


class Muon(AdamW):
    """Muon (Jordan et al. 2024): updates of matrices have orthogonal rows or columns.

    It applies to the weights of convolutions and linear layers, except those of the first layer, the
    classifier and depthwise convolutions. All other parameters are updated by AdamW. Both have updates of
    about the same size (Liu et al. 2025), so the learning rate and the weight decay are those of AdamW.
    """

    momentum: Decay = 0.95
    """Factor of the previous velocity of matrices in each update, with Nesterov momentum."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns AdamW with other updates of matrices; see `MuonOptimizer` and `DecoupledOptimizer`."""
        from ppcls.optimizer.functional import MuonOptimizer

        return MuonOptimizer(
            momentum=self.momentum, beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, **common
        )


class ScheduleFreeAdamW(AdamW):
    """Schedule-free AdamW (Defazio et al. 2024), which averages the weights instead of lowering the rate.

    Evaluations, `best_model` and exported models use the average. Training continues with weights near it,
    and checkpoints contain both. The learning rate is that of ``lr.name: Constant``, with a warm-up.
    """

    beta1: Decay = 0.9
    """Share of the average in the weights with which gradients are computed. The rest are the weights that
    receive the updates."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns a formula, because Paddle does not have it; see `ScheduleFreeAdamWOptimizer`."""
        from ppcls.optimizer.functional import ScheduleFreeAdamWOptimizer

        return ScheduleFreeAdamWOptimizer(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, **common)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields a moving average beside the average of the optimizer."""
        yield from super().problems(facts, part)
        if facts.has_ema:
            yield problem(f"{self.kind} averages the weights itself; remove EMA, or use AdamW", "name")

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:
        """Yields a schedule that lowers the learning rate."""
        yield from super().warnings(facts, part)
        if not isinstance(self.lr, Constant):
            yield (
                f"lr.name ({self.lr.kind}) lowers the learning rate, but {self.kind} averages the weights "
                "instead, and updates with a low rate count little; set Optimizer.lr.name: Constant"
            )


class RMSProp(CoupledOptimizer):
    """RMSProp (Tieleman & Hinton 2012), with momentum."""

    rho: Decay = 0.95
    """Decay of the moving average of the squared gradient."""
    epsilon: Positive = 1e-6
    """Number to add to the averaged squared gradient, whose root is the denominator."""
    momentum: Decay = 0.0
    """Factor of the previous velocity in each update."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns `paddle.optimizer.RMSProp`; see `CoupledOptimizer`."""
        from paddle import optimizer

        return optimizer.RMSProp(rho=self.rho, epsilon=self.epsilon, momentum=self.momentum, **common)


class Lamb(DecoupledOptimizer):
    """LAMB (You et al. 2020, algorithm 2): AdamW with updates scaled to ``lr`` times the norm of the tensor.

    ``r = m / (sqrt(v) + epsilon) + weight_decay * p``; ``p -= lr * |p| / |r| * r``. Tensors without weight
    decay are updated by ``p -= lr * r``.
    """

    beta1: Decay = 0.9
    """Decay of the moving average `m` of the gradient."""
    beta2: Decay = 0.999
    """Decay of the moving average `v` of the squared gradient."""
    epsilon: Positive = 1e-6
    """Number to add to the denominator, the root of the averaged squared gradient."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns Paddle's LAMB with a weight decay per parameter; see `DecoupledOptimizer`."""
        from ppcls.optimizer.functional import LambPerParameter

        return LambPerParameter(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, **common)


class LARS(DecoupledOptimizer):
    """LARS (You et al. 2017, algorithm 1): momentum with a learning rate per tensor, for large batches.

    ``rate = lr * lars_coeff * |p| / (|g| + weight_decay * |p| + epsilon)``; ``v = momentum * v + rate * (g +
    weight_decay * p)``; ``p -= v``. Tensors without weight decay, and tensors of zeros, have ``rate = lr``.
    """

    weight_decay: NonNegative = 5e-4
    """Weight decay, which is added to the gradient as `weight_decay * p`."""
    momentum: Decay = 0.9
    """Factor of the previous velocity in each update."""
    lars_coeff: Positive = 1e-3
    """Trust coefficient, `eta` in the paper."""
    epsilon: NonNegative = 0.0
    """Number to add to the denominator of `rate`, to avoid a division by zero."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns LARS as a formula, because Paddle's fails; see `LarsOptimizer` and `DecoupledOptimizer`."""
        from ppcls.optimizer.functional import LarsOptimizer

        return LarsOptimizer(momentum=self.momentum, trust=self.lars_coeff, epsilon=self.epsilon, **common)


class Lion(DecoupledOptimizer):
    """Lion (Chen et al. 2023, algorithm 2): updates use only the sign of an averaged gradient.

    ``p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)``, then ``m = beta2 * m + (1 - beta2) *
    g``. The paper recommends a learning rate 3 to 10 times smaller than for AdamW, and a weight decay 3 to 10
    times larger.
    """

    beta1: Decay = 0.9
    """Weight of the averaged gradient `m` in an update. The weight of the current gradient is `1 - beta1`."""
    beta2: Decay = 0.99
    """Decay of the moving average `m` of the gradient."""

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns Lion as a formula, because Paddle does not have it; see `DecoupledOptimizer`."""
        from ppcls.optimizer.functional import LionOptimizer

        return LionOptimizer(beta1=self.beta1, beta2=self.beta2, **common)

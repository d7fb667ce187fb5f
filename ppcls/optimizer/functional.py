"""Optimizers for Paddle: LARS, Lion, Muon, schedule-free AdamW, and AdamW and LAMB with decays by name.

Paddle's arguments ``apply_decay_param_fun`` and ``exclude_from_weight_decay_fn`` only switch the weight decay
of a parameter off. Another decay per parameter needs `_append_optimize_op`, which Paddle calls for each of
them; no public method does. `FormulaOptimizer` overrides the private methods with which all of Paddle's own
optimizers define their state and their update. Both work in Paddle 2.6.2 and 3.3.1. tests/optimizer trains
with each optimizer, and compares it with a formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import paddle
from paddle import Tensor, optimizer

from ppcls.optimizer.state import is_hidden_matrix

SGD_RATE = "sgd_rate"  # key in a parameter's ``optimize_attr`` for a constant learning rate
SPREAD = "spread"  # kind of state of schedule-free optimizers
_SMALLEST_RATE_SUM = 1e-30
# Coefficients of the polynomial that Jordan et al. 2024 chose, and its number of iterations. The singular
# values of the result are between about 0.7 and 1.2.
_ORTHOGONAL_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
_ORTHOGONAL_ITERATIONS = 5
_ADAM_SIZE = 0.2  # root mean square of the updates of AdamW, as measured by Liu et al. 2025


def with_plain_sgd(built: optimizer.Optimizer) -> optimizer.Optimizer:
    """Makes an optimizer update parameters that have a `SGD_RATE` by plain SGD, and returns the optimizer.

    The update is ``p -= rate * g``. It ignores the learning rate, the state and the weight decay of the
    optimizer.
    """
    kind = type(built)

    def update(self: Any, block: Any, pair: tuple[Tensor, Tensor]) -> None:
        parameter, gradient = pair
        if (rate := parameter.optimize_attr.get(SGD_RATE)) is None:
            kind._append_optimize_op(self, block, pair)
        else:
            # In place, because CUDA graphs and the buffers of all weights hold this tensor.
            parameter.subtract_(rate * gradient)

    # The class is no longer exactly Paddle's, so that fused updates, which would ignore the plain SGD, do not
    # replace this update. Its name stays, because messages contain it.
    built.__class__ = type(kind.__name__, (kind,), {"_append_optimize_op": update})
    return built


class AdamWPerParameter(optimizer.AdamW):  # type: ignore[misc]
    """Paddle's AdamW with a weight decay per parameter.

    Args:
        decay: Weight decay of each parameter, by Paddle's tensor name.
        common: Other arguments of Paddle's AdamW.
    """

    def __init__(self, decay: Mapping[str, float], **common: Any) -> None:
        super().__init__(weight_decay=0.0, **common)
        self.decays = decay

    def _append_optimize_op(self, block: Any, pair: tuple[Tensor, Tensor]) -> None:
        self._weight_decay = self.decays[pair[0].name]
        super()._append_optimize_op(block, pair)


class LambPerParameter(optimizer.Lamb):  # type: ignore[misc]
    """Paddle's LAMB with a weight decay per parameter. The arguments are those of `AdamWPerParameter`."""

    def __init__(self, decay: Mapping[str, float], **common: Any) -> None:
        super().__init__(lamb_weight_decay=0.0, **common)
        self.decays = decay

    def _append_optimize_op(self, block: Any, pair: tuple[Tensor, Tensor]) -> None:
        self._lamb_weight_decay = self.decays[pair[0].name]
        super()._append_optimize_op(block, pair)


class FormulaOptimizer(optimizer.Optimizer):  # type: ignore[misc]
    """Base class of optimizers whose update is a formula of basic operators, computed in float32.

    The update of a half-precision parameter changes its float32 master weight.

    Attributes:
        kinds: Names of the tensors that are stored per parameter. They have the parameter's shape and start
            at 0.
        numbers: Names of the numbers that are stored per parameter, tensors [1]. They start at 0.

    Args:
        decay: Weight decay of each parameter, by Paddle's tensor name.
        common: Arguments of Paddle's `Optimizer`: learning rate, parameters, gradient clipping.
    """

    kinds: ClassVar[tuple[str, ...]]
    numbers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, decay: Mapping[str, float], **common: Any) -> None:
        super().__init__(**common)
        self.decays = decay
        self._multi_precision = False
        self._master_weights: dict[str, Tensor] = {}

    @property
    def settings(self) -> tuple[float, ...]:
        """Constants of the formula, in the order of the arguments."""
        raise NotImplementedError

    def change(self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, *stored: Tensor) -> None:
        """Updates one weight and its stored tensors in place.

        Args:
            weight: Weight, float32.
            gradient: Gradient of the same shape, float32.
            rate: Learning rate, float32 of shape [1] or [].
            decay: Weight decay.
            stored: Stored tensors of the weight, in the order of `kinds`, then of `numbers`.
        """
        raise NotImplementedError

    def _create_accumulators(self, _block: Any, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            master = self._create_master_weight(parameter) if _has_master(self, parameter) else parameter
            for kind in self.kinds:
                self._add_accumulator(kind, master)
            for number in self.numbers:
                self._add_accumulator(number, master, shape=[1])

    def _append_optimize_op(self, _block: Any, pair: tuple[Tensor, Tensor]) -> None:
        parameter, gradient = pair
        has_master = _has_master(self, parameter)
        weight = self._master_weights[parameter.name] if has_master else parameter
        self.change(
            weight,
            gradient.astype("float32"),
            self._create_param_lr(pair),
            self.decays[parameter.name],
            *(self._get_accumulator_master(kind, parameter) for kind in (*self.kinds, *self.numbers)),
        )
        if has_master:
            parameter.copy_(weight.astype(parameter.dtype), False)


class LarsOptimizer(FormulaOptimizer):
    """LARS (You et al. 2017, https://arxiv.org/abs/1708.03888, algorithm 1).

    Paddle 2.6.2 has LARS, but its implementation crashes on half-precision parameters, because it reads a
    master weight that it did not receive.

    Args:
        momentum: Decay of the velocity per update.
        trust: Trust coefficient, ``eta`` in the paper.
        epsilon: Term added to the norms.
        common: Arguments of `FormulaOptimizer`.
    """

    kinds = ("velocity",)

    def __init__(self, momentum: float, trust: float, epsilon: float, **common: Any) -> None:
        super().__init__(**common)
        self._momentum = momentum
        self._trust = trust
        self._epsilon = epsilon

    @property
    def settings(self) -> tuple[float, ...]:
        """Momentum, trust coefficient and epsilon."""
        return self._momentum, self._trust, self._epsilon

    def change(self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, *stored: Tensor) -> None:
        """Computes ``v = momentum * v + local_rate * (g + decay * p)`` and ``p -= v``.

        ``local_rate`` is ``rate * trust * |p| / (|g| + decay * |p| + epsilon)``, or ``rate`` if ``decay`` is
        0.
        """
        (velocity,) = stored
        if decay:
            p = weight.square().sum().sqrt()
            g = gradient.square().sum().sqrt()
            ratio = self._trust * p / (g + decay * p + self._epsilon)
            rate = rate * paddle.where((p > 0) & (g > 0), ratio, paddle.ones_like(ratio))
            gradient = gradient + decay * weight
        velocity.scale_(self._momentum).add_(gradient * rate)
        weight.subtract_(velocity)


class LionOptimizer(FormulaOptimizer):
    """Lion (Chen et al. 2023, https://arxiv.org/abs/2302.06675, algorithm 2).

    Args:
        beta1: Decay of the average whose sign determines the update.
        beta2: Decay of the stored average.
        common: Arguments of `FormulaOptimizer`.
    """

    kinds = ("moment",)

    def __init__(self, beta1: float, beta2: float, **common: Any) -> None:
        super().__init__(**common)
        self._beta1 = beta1
        self._beta2 = beta2

    @property
    def settings(self) -> tuple[float, ...]:
        """Both betas."""
        return self._beta1, self._beta2

    def change(self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, *stored: Tensor) -> None:
        """Computes ``p -= rate * (sign(beta1 * m + (1 - beta1) * g) + decay * p)``.

        Then computes the new stored average ``m = beta2 * m + (1 - beta2) * g``.
        """
        (moment,) = stored
        direction = (self._beta1 * moment + (1.0 - self._beta1) * gradient).sign()
        if decay:
            direction = direction + decay * weight
        weight.subtract_(direction * rate)
        moment.scale_(self._beta2).add_((1.0 - self._beta2) * gradient)


class ScheduleFreeAdamWOptimizer(FormulaOptimizer):
    """Schedule-free AdamW (Defazio et al. 2024, https://arxiv.org/abs/2405.15682, algorithm 1).

    The paper has three sequences of weights: ``z`` receives the updates, ``x`` is the average of ``z``, and
    gradients are computed at ``y``, which is between both. The parameters are ``y``. The state contains the
    difference ``z - x``. Both others follow from it and ``y``, so the optimizer needs no more memory than
    AdamW.

    Args:
        beta1: Share of ``x`` in ``y``.
        beta2: Decay of the average of the squared gradient.
        epsilon: Term added to the denominator.
        common: Arguments of `FormulaOptimizer`.
    """

    kinds = (SPREAD, "moment2")
    numbers = ("correction", "rate_sum")

    def __init__(self, beta1: float, beta2: float, epsilon: float, **common: Any) -> None:
        super().__init__(**common)
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon

    @property
    def settings(self) -> tuple[float, ...]:
        """Both betas and epsilon."""
        return self._beta1, self._beta2, self._epsilon

    def average(self, weight: Tensor, spread: Tensor) -> Tensor:
        """Returns ``x``.

        Args:
            weight: Weight ``y``, float32.
            spread: Stored difference ``z - x``.
        """
        return weight - (1.0 - self._beta1) * spread

    def change(self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, *stored: Tensor) -> None:
        """Computes ``v = beta2 * v + (1 - beta2) * g^2`` and ``r = rate * sqrt(1 - beta2^t)``.

        Then ``z -= r * (g / (sqrt(v) + epsilon) + decay * y)``, ``x += c * (z - x)`` and ``y = beta1 * x +
        (1 - beta1) * z``, with ``c`` equal to the square of ``r`` divided by the sum of its squares so far.
        """
        spread, moment2, correction, rate_sum = stored
        # In place, because new memory for large tensors takes most of the time on a CPU.
        moment2.scale_(self._beta2).add_(gradient.square().scale_(1.0 - self._beta2))
        correction.scale_(self._beta2, bias=1.0 - self._beta2)  # 1 - beta2^t
        rate = rate * correction.sqrt()
        rate_sum.add_(rate.square())
        # A warm-up starts at a rate of 0, whose share is 0.
        share = rate.square() / rate_sum.clip(min=_SMALLEST_RATE_SUM)
        step = gradient / moment2.sqrt().scale_(1.0, bias=self._epsilon)
        if decay:
            step.add_(decay * weight)
        step.multiply_(rate)
        spread.subtract_(step)  # the new z - the old x
        weight.subtract_(step.scale_(1.0 - self._beta1)).add_((self._beta1 * share) * spread)
        spread.multiply_(1.0 - share)


class MuonOptimizer(AdamWPerParameter):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) beside AdamW.

    Weights that `is_hidden_matrix` selects get an update with orthogonal rows or columns. All others are
    updated by AdamW. The size of an update is that of AdamW (Liu et al. 2025,
    https://arxiv.org/abs/2502.16982), so both use the same learning rate and weight decay.

    Args:
        momentum: Factor of the previous velocity of matrices.
        common: Arguments of `AdamWPerParameter`.
    """

    def __init__(self, momentum: float, **common: Any) -> None:
        super().__init__(**common)
        self._momentum = momentum

    def _create_accumulators(self, block: Any, parameters: list[Tensor]) -> None:
        super()._create_accumulators(block, [each for each in parameters if not is_hidden_matrix(each)])
        for parameter in filter(is_hidden_matrix, parameters):
            master = self._create_master_weight(parameter) if _has_master(self, parameter) else parameter
            self._add_accumulator("velocity", master)

    def _append_optimize_op(self, block: Any, pair: tuple[Tensor, Tensor]) -> None:
        parameter, gradient = pair
        if not is_hidden_matrix(parameter):
            super()._append_optimize_op(block, pair)
            return
        has_master = _has_master(self, parameter)
        weight = self._master_weights[parameter.name] if has_master else parameter
        velocity = self._get_accumulator_master("velocity", parameter)
        rate = self._create_param_lr(pair)
        self.change(weight, gradient.astype("float32"), rate, self.decays[parameter.name], velocity)
        if has_master:
            parameter.copy_(weight.astype(parameter.dtype), False)

    def change(self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, velocity: Tensor) -> None:
        """Updates one hidden matrix and its velocity in place. See `FormulaOptimizer.change`."""
        velocity.scale_(self._momentum).add_(gradient)
        direction = (gradient + self._momentum * velocity).flatten(1)
        update = orthogonalize(direction) * (_ADAM_SIZE * math.sqrt(max(direction.shape)))
        update = update.reshape(weight.shape) + decay * weight
        weight.subtract_(update * rate)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Returns about the nearest matrix with orthogonal rows or columns, by a Newton-Schulz iteration.

    Args:
        matrix: Matrix [R, C], float32. Zeros remain zeros.
    """
    a, b, c = _ORTHOGONAL_POLYNOMIAL
    rows, columns = matrix.shape
    result = matrix.t() if rows > columns else matrix
    result = result / (result.square().sum().sqrt() + 1e-12)
    for _ in range(_ORTHOGONAL_ITERATIONS):
        product = result.matmul(result, transpose_y=True)
        result = a * result + (b * product + c * product.matmul(product)).matmul(result)
    return result.t() if rows > columns else result


def _has_master(built: optimizer.Optimizer, parameter: Tensor) -> bool:
    """Returns whether the updates of a half-precision parameter change a float32 master weight."""
    return bool(built._multi_precision and built._is_dtype_fp16_or_bf16(parameter.dtype))

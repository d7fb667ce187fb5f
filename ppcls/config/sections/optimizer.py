"""The section ``Optimizer``: optimizers, and rules for parameters whose names match a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import (
    Bound,
    Decay,
    NonNegative,
    Positive,
    Section,
    Spec,
    Tagged,
    error_at,
    expected,
)
from ppcls.config.sections.schedule import Schedule
from ppcls.registry import SCHEDULES


def _read_patterns(value: Any) -> Any:
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, (list, tuple)) or not patterns:
        raise expected("a pattern such as 'blocks.*', or a list of them", value)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern.strip() or pattern != pattern.strip():
            raise expected("a pattern such as 'blocks.*'", pattern)
    return patterns


Patterns = Annotated[tuple[str, ...], BeforeValidator(_read_patterns)]


class NameRule(Section):
    """Factors for parameters whose names match a pattern. If several rules match, all their factors apply."""

    pattern: Patterns
    """One pattern, or a list of patterns, such as `fc.*` or `*.bias`. A pattern must match the whole name of
    a parameter: `*` matches any text, `?` one character, `[01]` one of the characters in brackets. The
    pattern `classifier` matches the last layer of any model."""
    lr_mult: Positive = 1.0
    """Factor of the learning rate of these parameters."""
    decay_mult: NonNegative = 1.0
    """Factor of the weight decay of these parameters."""

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        if not {"lr_mult", "decay_mult"} & self.model_fields_set:
            raise ValueError("expected lr_mult or decay_mult; without them the rule has no effect")
        return self


class L2(Section):
    """Coupled L2 regularization. It adds ``coeff * parameter`` to the gradient after clipping."""

    name: Literal["L2"]
    """Kind of regularization. Only `L2` is supported."""
    coeff: NonNegative
    """Weight decay: factor of the penalty `coeff / 2 * |parameter|^2` in the loss."""


class OptimizerSpec(Spec):
    """Keys of all optimizers."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "learning_rate": "set lr.learning_rate, a key of the schedule",
    }
    ignored: ClassVar[Mapping[str, str]] = {"clip_grad": "clip_norm or clip_value clips gradients"}
    lr: Annotated[Schedule, Tagged(SCHEDULES)]
    """Learning rate and its schedule."""
    no_weight_decay_name: str | None = None
    """Substrings separated by spaces, such as `pos_embed .bias`. A parameter whose name contains one of them
    has no weight decay. Default: no such parameters."""
    one_dim_param_no_weight_decay: bool = False
    """Apply no weight decay to one-dimensional parameters: biases, and weights of normalization layers."""
    clip_norm: Positive | None = None
    """Maximum of the L2 norm over all gradients. Larger gradients are scaled down to this norm. Default: no
    limit."""
    clip_value: Positive | None = None
    """Maximum absolute value of each gradient element. Elements are clipped to `[-clip_value, clip_value]`.
    Default: no limit."""
    multi_precision: bool | None = None
    """Accepted for compatibility with PaddleClas; has no effect. `AMP.level: O2` always keeps float32 master
    weights."""
    freeze: Patterns | None = None
    """Name patterns of parameters that are not trained, such as `blocks.*`; default: none. If weight and bias
    of a BatchNorm layer are frozen, the layer uses its running statistics and does not update them."""
    train_only: Patterns | None = None
    """Name patterns of the parameters to train, such as `classifier`. All other parameters are frozen.
    Default: all parameters are trained."""
    by_name: tuple[NameRule, ...] = ()
    """Factors of the learning rate and the weight decay of parameters with certain names."""

    @property
    def decay(self) -> float:
        """Weight decay; 0 for none."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        for one, other in (("clip_norm", "clip_value"), ("freeze", "train_only")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(f"{one} and {other} exclude each other; set only one of them")
        for position, rule in enumerate(self.by_name):
            if "decay_mult" in rule.model_fields_set and not self.decay:
                text = "the optimizer has no weight decay; remove this key, or set a weight decay"
                raise error_at(text, "by_name", position, "decay_mult")
        return self


class CoupledSpec(OptimizerSpec):
    """An optimizer whose weight decay is part of the gradient."""

    regularizer: L2 | None = None
    """L2 regularization, such as `{name: L2, coeff: 1e-4}`; default: none."""
    weight_decay: NonNegative | None = None
    """Alias of `regularizer.coeff`; default: no weight decay. `regularizer` takes precedence."""

    @property
    def decay(self) -> float:
        """Weight decay from ``regularizer`` or ``weight_decay``; 0 for none."""
        return (self.weight_decay or 0.0) if self.regularizer is None else self.regularizer.coeff


class DecoupledSpec(OptimizerSpec):
    """An optimizer whose weight decay is separate from the gradient."""

    key_hints: ClassVar[Mapping[str, str]] = {
        **OptimizerSpec.key_hints,
        "regularizer": "write weight_decay",
    }
    weight_decay: NonNegative = 0.01
    """Weight decay. Each update subtracts `learning rate * weight_decay * parameter`."""

    @property
    def decay(self) -> float:
        """Weight decay: ``weight_decay``."""
        return self.weight_decay


class SGD(CoupledSpec):
    """Stochastic gradient descent: ``p -= lr * g`` for a parameter ``p`` with gradient ``g``."""


class Momentum(CoupledSpec):
    """SGD with momentum: ``v = momentum * v + g``, then ``p -= lr * v``.

    With Nesterov momentum: ``p -= lr * (g + momentum * v)``.
    """

    momentum: Decay = 0.9
    """Factor of the previous velocity in each update."""
    use_nesterov: bool = False
    """Use Nesterov momentum."""


class Adam(CoupledSpec):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    beta1: Decay = 0.9
    """Decay of the moving average of the gradient."""
    beta2: Decay = 0.999
    """Decay of the moving average of the squared gradient."""
    epsilon: Positive = 1e-8
    """Number to add to the denominator, the root of the averaged squared gradient."""


class AdamW(DecoupledSpec):
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


class AdamWDL(AdamW):
    """PaddleClas's name for `AdamW`, for use with ``layerwise_decay``."""

    filter_bias_and_bn: bool = True
    """Apply no weight decay to one-dimensional parameters and biases."""


class Lamb(DecoupledSpec):
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


class LARS(DecoupledSpec):
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


class Lion(DecoupledSpec):
    """Lion (Chen et al. 2023, algorithm 2): updates use only the sign of an averaged gradient.

    ``p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)``, then ``m = beta2 * m + (1 - beta2) *
    g``. The paper recommends a learning rate 3 to 10 times smaller than for AdamW, and a weight decay 3 to 10
    times larger.
    """

    beta1: Decay = 0.9
    """Weight of the averaged gradient `m` in an update. The weight of the current gradient is `1 - beta1`."""
    beta2: Decay = 0.99
    """Decay of the moving average `m` of the gradient."""


class RMSProp(CoupledSpec):
    """RMSProp (Tieleman & Hinton 2012), with momentum."""

    rho: Decay = 0.95
    """Decay of the moving average of the squared gradient."""
    epsilon: Positive = 1e-6
    """Number to add to the averaged squared gradient, whose root is the denominator."""
    momentum: Decay = 0.0
    """Factor of the previous velocity in each update."""

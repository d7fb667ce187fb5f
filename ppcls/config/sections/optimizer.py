"""Optimizers: the section ``Optimizer``."""

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
    """Factors for parameters whose names match a pattern. If several rules match, all factors apply."""

    pattern: Patterns
    """One pattern or a list, for full parameter names such as `fc.*` or `*.bias`: `*` matches any text, `?`
    one character, `[01]` one of these characters. `classifier` matches the last layer of any model."""
    lr_mult: Positive = 1.0
    """Factor of the learning rate."""
    decay_mult: NonNegative = 1.0
    """Factor of the weight decay."""

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        if not {"lr_mult", "decay_mult"} & self.model_fields_set:
            raise ValueError("expected lr_mult or decay_mult; without them the rule has no effect")
        return self


class L2(Section):
    """Coupled L2 regularization, which adds ``coeff * parameter`` to the gradient after clipping."""

    name: Literal["L2"]
    """Kind of regularization."""
    coeff: NonNegative
    """Factor in the penalty `coeff / 2 * |parameter|^2`."""


class OptimizerSpec(Spec):
    """Keys of all optimizers."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "learning_rate": "the schedule contains it: lr.learning_rate",
    }
    ignored: ClassVar[Mapping[str, str]] = {"clip_grad": "clip_norm or clip_value clips gradients"}
    lr: Annotated[Schedule, Tagged(SCHEDULES)]
    """Learning-rate schedule."""
    no_weight_decay_name: str | None = None
    """Blank-separated substrings, such as `pos_embed .bias`. Parameters whose names contain one have no
    weight decay."""
    one_dim_param_no_weight_decay: bool = False
    """Apply no weight decay to one-dimensional parameters (biases, norms)."""
    clip_norm: Positive | None = None
    """Scale all gradients so that their global L2 norm is at most this."""
    clip_value: Positive | None = None
    """Clip each element of the gradients to `[-clip_value, clip_value]`."""
    multi_precision: bool | None = None
    """Accepted for compatibility with PaddleClas; AMP.level O2 always keeps float32 master weights."""
    freeze: Patterns | None = None
    """Name patterns such as `blocks.*` of parameters that are not trained. A BatchNorm layer with frozen
    weight and bias normalizes with its running statistics and keeps them."""
    train_only: Patterns | None = None
    """Name patterns of the only parameters that are trained, such as `classifier`. All others are frozen."""
    by_name: tuple[NameRule, ...] = ()
    """Factors of learning rate and weight decay for some parameters."""

    @property
    def decay(self) -> float:
        """Factor of the weight decay; 0 for none."""
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
    """L2 regularization."""
    weight_decay: NonNegative | None = None
    """PaddleClas's other name for `regularizer.coeff`. `regularizer` takes precedence."""

    @property
    def decay(self) -> float:
        """Factor from ``regularizer`` or ``weight_decay``; 0 for none."""
        return (self.weight_decay or 0.0) if self.regularizer is None else self.regularizer.coeff


class DecoupledSpec(OptimizerSpec):
    """An optimizer whose weight decay is separate from the gradient."""

    key_hints: ClassVar[Mapping[str, str]] = {
        **OptimizerSpec.key_hints,
        "regularizer": "write weight_decay",
    }
    weight_decay: NonNegative = 0.01
    """Factor of the decoupled weight decay."""

    @property
    def decay(self) -> float:
        """``weight_decay``."""
        return self.weight_decay


class SGD(CoupledSpec):
    """``p -= lr * g``."""


class Momentum(CoupledSpec):
    """``v = momentum * v + g``; ``p -= lr * v``; with Nesterov momentum ``p -= lr * (g + momentum * v)``."""

    momentum: Decay = 0.9
    """Decay of the velocity."""
    use_nesterov: bool = False
    """Use Nesterov's momentum."""


class Adam(CoupledSpec):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    beta1: Decay = 0.9
    """Decay of the mean gradient."""
    beta2: Decay = 0.999
    """Decay of the mean squared gradient."""
    epsilon: Positive = 1e-8
    """Added to the root of the mean squared gradient."""


class AdamW(DecoupledSpec):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2)."""

    beta1: Decay = 0.9
    """Decay of the mean gradient."""
    beta2: Decay = 0.999
    """Decay of the mean squared gradient."""
    epsilon: Positive = 1e-8
    """Added to the root of the mean squared gradient."""
    layerwise_decay: Annotated[float, Bound(gt=0, le=1)] | None = None
    """Each numbered block has the learning rate of the next one times this factor (Howard & Ruder 2018,
    section 3.2). With `n` blocks, the head has factor 1, block `i` (counted from 0) has
    `layerwise_decay ** (n - i)`, and layers before the blocks, such as embeddings, have
    `layerwise_decay ** (n + 1)`."""


class AdamWDL(AdamW):
    """PaddleClas's name for `AdamW` with ``layerwise_decay``."""

    filter_bias_and_bn: bool = True
    """Apply no weight decay to one-dimensional parameters and biases."""


class Lamb(DecoupledSpec):
    """LAMB (You et al. 2020, algorithm 2): the AdamW step of each tensor, scaled to ``lr`` times its norm.

    ``r = m / (sqrt(v) + epsilon) + weight_decay * p``; ``p -= lr * |p| / |r| * r``. Without weight decay a
    tensor's step is ``lr * r``.
    """

    beta1: Decay = 0.9
    """Decay of the mean gradient."""
    beta2: Decay = 0.999
    """Decay of the mean squared gradient."""
    epsilon: Positive = 1e-6
    """Added to the root of the mean squared gradient."""


class LARS(DecoupledSpec):
    """LARS (You et al. 2017, algorithm 1), for large batches: Momentum with a learning rate for each tensor.

    ``rate = lr * lars_coeff * |p| / (|g| + weight_decay * |p| + epsilon)``; ``v = momentum * v + rate * (g +
    weight_decay * p)``; ``p -= v``. Tensors without weight decay, and tensors of zeros, have ``rate = lr``.
    """

    weight_decay: NonNegative = 5e-4
    """Factor of the weight decay."""
    momentum: Decay = 0.9
    """Decay of the velocity."""
    lars_coeff: Positive = 1e-3
    """Trust coefficient, `eta` in the paper."""
    epsilon: NonNegative = 0.0
    """Added to the norms, so that no divisor is zero."""


class Lion(DecoupledSpec):
    """Lion (Chen et al. 2023, algorithm 2): steps of constant length, and one average as state.

    ``p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)``, then ``m = beta2 * m + (1 - beta2) *
    g``. The paper uses a third to a tenth of AdamW's learning rate, and a weight decay larger by this factor.
    """

    beta1: Decay = 0.9
    """Weight of the averaged gradient in an update; the current gradient has the rest."""
    beta2: Decay = 0.99
    """Decay of the averaged gradient."""


class RMSProp(CoupledSpec):
    """RMSProp (Tieleman & Hinton 2012), with momentum."""

    rho: Decay = 0.95
    """Decay of the mean squared gradient."""
    epsilon: Positive = 1e-6
    """Added to the mean squared gradient, under the root."""
    momentum: Decay = 0.0
    """Decay of the velocity."""

"""Optimizers, as the section ``Optimizer`` names them in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import (
    Bound,
    Decay,
    NonNegative,
    Positive,
    Section,
    Spec,
    Tagged,
    expected,
    problem,
)
from ppcls.config.sections.schedule import Schedule
from ppcls.registry import SCHEDULES


def _patterns(value: Any) -> Any:
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not listed:
        raise expected("a pattern such as 'blocks.*', or a list of them", value)
    for each in listed:
        if not isinstance(each, str) or not each.strip() or each != each.strip():
            raise expected("a pattern such as 'blocks.*'", each)
    return listed


Patterns = Annotated[tuple[str, ...], BeforeValidator(_patterns)]


class NameRule(Section):
    """What the parameters of one pattern have of their own; of several rules that match, all factors count.

    Attributes:
        pattern: Of whole names as in the model, one or a list: ``fc.*``, ``*.bias``; ``*`` stands for any
            text, ``?`` for one character, ``[01]`` for one of these.
        lr_mult: Factor of the learning rate.
        decay_mult: Factor of the weight decay.
    """

    pattern: Patterns
    lr_mult: Positive = 1.0
    decay_mult: NonNegative = 1.0

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not {"lr_mult", "decay_mult"} & self.model_fields_set:
            raise ValueError("expected lr_mult or decay_mult, for without them the rule changes nothing")
        return self


LayerDecay = Annotated[float, Bound(gt=0, le=1)]


class L2(Section):
    """Coupled L2: adds ``coeff * parameter`` to the gradient after clipping.

    Attributes:
        coeff: The factor, as in the penalty ``coeff / 2 * |parameter|^2``.
    """

    name: Literal["L2"]
    coeff: NonNegative


class OptimizerSpec(Spec):
    """What all optimizers share.

    Attributes:
        lr: The learning-rate schedule.
        no_weight_decay_name: Blank-separated substrings; a parameter whose name has one of them, such as
            ``"pos_embed .bias"``, does not decay.
        one_dim_param_no_weight_decay: One-dimensional parameters (biases, norms) do not decay.
        clip_norm: Scales all gradients so that their global L2 norm is at most this.
        clip_value: Cuts every element of the gradients to ``[-clip_value, clip_value]``.
        multi_precision: As in PaddleClas's files; float32 master weights are kept under AMP.level O2, always.
        freeze: Patterns of names, such as ``blocks.*``, whose parameters are not trained; a BatchNorm layer
            whose weight and bias are frozen normalizes by its running statistics, and keeps them.
        train_only: Patterns of names whose parameters alone are trained; all others are frozen.
        by_name: Factors of learning rate and weight decay for some parameters.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "learning_rate": "it is part of the schedule: lr.learning_rate",
    }
    without_effect: ClassVar[Mapping[str, str]] = {
        "clip_grad": "clip_norm, or clip_value, is the key that clips gradients"
    }
    lr: Annotated[Schedule, Tagged(SCHEDULES)]
    no_weight_decay_name: str | None = None
    one_dim_param_no_weight_decay: bool = False
    clip_norm: Positive | None = None
    clip_value: Positive | None = None
    multi_precision: bool | None = None
    freeze: Patterns | None = None
    train_only: Patterns | None = None
    by_name: tuple[NameRule, ...] = ()

    @property
    def decay(self) -> float:
        """The factor of the weight decay; 0 for none."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _one_clip(self) -> Self:
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError("clip_norm and clip_value exclude each other; give one of them")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.freeze is not None and self.train_only is not None:
            raise ValueError("freeze and train_only exclude each other; give one of them")
        for position, rule in enumerate(self.by_name):
            if "decay_mult" in rule.model_fields_set and not self.decay:
                text = "there is no weight decay to multiply; remove it, or give the optimizer one"
                raise ValidationError.from_exception_data(
                    "rule", [problem(text, "by_name", position, "decay_mult")]
                )
        return self


class CoupledSpec(OptimizerSpec):
    """An optimizer whose weight decay is part of the gradient.

    Attributes:
        weight_decay: ``regularizer.coeff`` by PaddleClas's other name; ``regularizer`` goes before it.
    """

    regularizer: L2 | None = None
    weight_decay: NonNegative | None = None

    @property
    def decay(self) -> float:
        """That of ``regularizer``, or ``weight_decay``."""
        return (self.weight_decay or 0.0) if self.regularizer is None else self.regularizer.coeff


class DecoupledSpec(OptimizerSpec):
    """An optimizer with a weight decay of its own, apart from the gradient."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        **OptimizerSpec.elsewhere,
        "regularizer": "this optimizer decays by weight_decay",
    }
    weight_decay: NonNegative = 0.01

    @property
    def decay(self) -> float:
        """``weight_decay``."""
        return self.weight_decay


class SGD(CoupledSpec):
    """``p -= lr * g``."""


class Momentum(CoupledSpec):
    """``v = momentum * v + g``; ``p -= lr * v``, or ``lr * (g + momentum * v)`` with Nesterov's."""

    momentum: Decay = 0.9
    use_nesterov: bool = False


class Adam(CoupledSpec):
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8


class AdamW(DecoupledSpec):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2).

    Attributes:
        weight_decay: ``p -= lr * weight_decay * p`` besides Adam's step.
        layerwise_decay: Factor of the learning rate from each numbered block to the one before it (Howard &
            Ruder 2018, section 3.2): of ``n`` blocks, number ``i`` from 0 has ``layerwise_decay ** (n - i)``,
            what comes before the first, such as embeddings, ``layerwise_decay ** (n + 1)``, the head 1.
    """

    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8
    layerwise_decay: LayerDecay | None = None


class AdamWDL(AdamW):
    """PaddleClas's name for `AdamW` with ``layerwise_decay``.

    Attributes:
        filter_bias_and_bn: One-dimensional parameters and biases do not decay.
    """

    filter_bias_and_bn: bool = True


class Lamb(DecoupledSpec):
    """LAMB (You et al. 2020, algorithm 2): each tensor's AdamW step, as long as ``lr`` times its norm.

    ``r = m / (sqrt(v) + epsilon) + weight_decay * p``; ``p -= lr * |p| / |r| * r``. A tensor that does not
    decay takes the step ``lr * r``.
    """

    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-6


class LARS(DecoupledSpec):
    """LARS (You et al. 2017, algorithm 1), for large batches: Momentum with a rate for each tensor.

    ``rate = lr * lars_coeff * |p| / (|g| + weight_decay * |p| + epsilon)``; ``v = momentum * v + rate * (g +
    weight_decay * p)``; ``p -= v``. A tensor that does not decay, and one of zeros, has ``rate = lr``.

    Attributes:
        lars_coeff: The trust in a tensor's own rate, ``eta`` of the paper.
        epsilon: Added to the norms.
    """

    weight_decay: NonNegative = 5e-4
    momentum: Decay = 0.9
    lars_coeff: Positive = 1e-3
    epsilon: NonNegative = 0.0


class Lion(DecoupledSpec):
    """Lion (Chen et al. 2023, algorithm 2): steps of one length, and one average for a state.

    ``p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)``, then ``m = beta2 * m + (1 - beta2) *
    g``. The paper takes a third to a tenth of AdamW's rate, and a weight decay larger by as much.
    """

    beta1: Decay = 0.9
    beta2: Decay = 0.99


class RMSProp(CoupledSpec):
    """RMSProp (Tieleman & Hinton 2012), with momentum.

    Attributes:
        rho: Decay of the mean square of the gradient.
        epsilon: Added to the mean square, under the root.
        momentum: Decay of the velocity.
    """

    rho: Decay = 0.95
    epsilon: Positive = 1e-6
    momentum: Decay = 0.0

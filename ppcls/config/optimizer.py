"""Optimizers, as the section ``Optimizer`` names them in YAML."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator
from typing_extensions import Self

from ppcls.config.fields import Decay, NonNegative, Positive, Section, Spec, Tagged
from ppcls.config.schedule import Schedule
from ppcls.registry import SCHEDULES


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
    """

    lr: Annotated[Schedule, Tagged(SCHEDULES)]
    no_weight_decay_name: str | None = None
    one_dim_param_no_weight_decay: bool = False
    clip_norm: Positive | None = None
    clip_value: Positive | None = None
    multi_precision: bool | None = None

    @model_validator(mode="after")
    def _one_clip(self) -> Self:
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError("clip_norm and clip_value exclude each other; give one of them")
        return self


class CoupledSpec(OptimizerSpec):
    """An optimizer whose weight decay is part of the gradient."""

    regularizer: L2 | None = None


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


class AdamW(OptimizerSpec):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2).

    Attributes:
        weight_decay: ``p -= lr * weight_decay * p`` besides Adam's step.
    """

    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.01


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

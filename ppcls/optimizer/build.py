"""Builds the optimizer that a config describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle import nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.config.custom import CustomOptimizer
from ppcls.config.sections.optimizer import (
    LARS,
    SGD,
    Adam,
    AdamW,
    AdamWDL,
    CoupledSpec,
    Lamb,
    Lion,
    Momentum,
    OptimizerSpec,
    RMSProp,
)
from ppcls.optimizer.name_rules import Factors
from ppcls.optimizer.optimizers import (
    SGD_RATE,
    AdamWPerParameter,
    LambPerParameter,
    LarsOptimizer,
    LionOptimizer,
    with_plain_sgd,
)


class _OwnDecay(L2Decay):  # type: ignore[misc]
    """Marks a parameter that has its own weight decay instead of that of the optimizer."""


def build_optimizer(
    spec: OptimizerSpec,
    model: nn.Layer,
    multi_precision: bool = False,
    factors: Mapping[str, Factors] | None = None,
) -> optimizer.Optimizer:
    """Builds an optimizer for all parameters of ``model``.

    All parameters are in one group, so that ``clip_norm`` applies to the global norm. The learning rate is a
    number, initially the peak of the schedule. Call ``set_lr`` before each update to change it. The function
    sets ``optimize_attr`` and ``regularizer`` of parameters that have their own learning rate or weight
    decay. It replaces the values that were set for an earlier optimizer of the same model.

    Args:
        spec: Settings of the optimizer.
        model: Model, not wrapped for data parallelism.
        multi_precision: Whether half-precision parameters get float32 master weights.
        factors: Factors of learning rate and weight decay by parameter name; the result of
            `ppcls.optimizer.name_rules.factors`.

    Returns:
        The optimizer, without state.

    Raises:
        TypeError: The kind of optimizer is unknown.
    """
    factor = {name: (factors or {}).get(name, Factors()) for name, _ in model.named_parameters()}
    decay = {
        parameter.name: spec.decay * factor[name].decay if decays(spec, name, parameter) else 0.0
        for name, parameter in model.named_parameters()
    }
    coupled = isinstance(spec, CoupledSpec)
    common = {
        "learning_rate": spec.lr.peak,
        "parameters": model.parameters(),
        "grad_clip": _clip(spec),
        **({"weight_decay": spec.decay or None} if coupled else {"decay": decay}),
    }
    built = _build(spec, common)
    if any(SGD_RATE in parameter.optimize_attr for parameter in model.parameters()):
        built = with_plain_sgd(built)
    # RMSProp has no argument multi_precision. It reads this attribute, which paddle.amp.decorate also sets.
    built._multi_precision = multi_precision
    for name, parameter in model.named_parameters():
        # An architecture such as PP-HGNetV2 may set the learning rates of some parameters.
        architecture_rate = parameter.optimize_attr.setdefault(
            "given", parameter.optimize_attr["learning_rate"]
        )
        parameter.optimize_attr["learning_rate"] = architecture_rate * factor[name].rate
        if isinstance(parameter.regularizer, _OwnDecay):
            parameter.regularizer = None
        if coupled and decay[parameter.name] != spec.decay:
            parameter.regularizer = _OwnDecay(decay[parameter.name])
    return built


def decays(spec: OptimizerSpec, name: str, parameter: Any) -> bool:
    """Returns whether the optimizer applies weight decay to the parameter ``name`` of the model."""
    if SGD_RATE in parameter.optimize_attr:
        return False
    flat = len(parameter.shape) == 1
    if flat and spec.one_dim_param_no_weight_decay:
        return False
    if isinstance(spec, AdamWDL) and spec.filter_bias_and_bn and (flat or name.endswith(".bias")):
        return False
    return not any(part in name for part in (spec.no_weight_decay_name or "").split())


def _clip(spec: OptimizerSpec) -> nn.ClipGradBase | None:
    if spec.clip_norm is not None:
        return nn.ClipGradByGlobalNorm(spec.clip_norm)
    if spec.clip_value is not None:
        return nn.ClipGradByValue(spec.clip_value)
    return None


def _build(spec: OptimizerSpec, common: dict[str, Any]) -> optimizer.Optimizer:
    match spec:
        case CustomOptimizer():
            return spec.build(**common)
        case SGD():
            return optimizer.SGD(**common)
        case Momentum():
            return optimizer.Momentum(momentum=spec.momentum, use_nesterov=spec.use_nesterov, **common)
        case RMSProp():
            return optimizer.RMSProp(rho=spec.rho, epsilon=spec.epsilon, momentum=spec.momentum, **common)
        case LARS():
            return LarsOptimizer(
                momentum=spec.momentum, trust=spec.lars_coeff, epsilon=spec.epsilon, **common
            )
        case Lion():
            return LionOptimizer(beta1=spec.beta1, beta2=spec.beta2, **common)
        case Adam():
            kind = optimizer.Adam
        case AdamW():
            kind = AdamWPerParameter
        case Lamb():
            kind = LambPerParameter
        case _:
            raise TypeError(f"the optimizer {spec.kind} cannot be built")
    return kind(beta1=spec.beta1, beta2=spec.beta2, epsilon=spec.epsilon, **common)

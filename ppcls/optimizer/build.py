"""From the config of an optimizer to the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from paddle import nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.config.sections.optimizer import (
    LARS,
    SGD,
    Adam,
    AdamW,
    AdamWDL,
    CoupledSpec,
    DecoupledSpec,
    Lamb,
    Lion,
    Momentum,
    OptimizerSpec,
    RMSProp,
)
from ppcls.optimizer import decoupled, lars, lion
from ppcls.optimizer.name_rules import Factors


class _Own(L2Decay):  # type: ignore[misc]
    """The mark of a parameter with a decay of its own: its regularizer goes before the optimizer's."""


def build_optimizer(
    spec: OptimizerSpec,
    model: nn.Layer,
    multi_precision: bool = False,
    factors: Mapping[str, Factors] | None = None,
) -> optimizer.Optimizer:
    """Builds the optimizer of all parameters of ``model``, in one group, so that ``clip_norm`` is global.

    Its learning rate is a plain number, at first the schedule's peak: call ``set_lr`` before each step.
    Parameters with a rate or a coupled decay of their own get marks (``optimize_attr`` and ``regularizer``);
    those of an optimizer that was built earlier for the same model are taken off.

    Args:
        spec: The optimizer's config.
        model: The bare model, not wrapped for data parallelism.
        multi_precision: Whether parameters in half precision get float32 master weights.
        factors: Of rate and decay, by names in the model; see `ppcls.optimizer.name_rules.factors`.

    Returns:
        The optimizer, without state as yet.
    """
    own = {name: (factors or {}).get(name, Factors()) for name, _ in model.named_parameters()}
    decay = {
        parameter.name: spec.decay * own[name].decay if decays(spec, name, parameter) else 0.0
        for name, parameter in model.named_parameters()
    }
    common = {"learning_rate": spec.lr.peak, "parameters": model.parameters(), "grad_clip": _clip(spec)}
    built = _build(spec, {**common, **_decay(spec, decay)})
    # RMSProp takes no such argument, but heeds the attribute, which paddle.amp.decorate sets as well.
    built._multi_precision = multi_precision
    for name, parameter in model.named_parameters():
        # What the architecture itself asks for, as PP-HGNetV2 does.
        given = parameter.optimize_attr.setdefault("given", parameter.optimize_attr["learning_rate"])
        parameter.optimize_attr["learning_rate"] = given * own[name].rate
        if isinstance(parameter.regularizer, _Own):
            parameter.regularizer = None
        if isinstance(spec, CoupledSpec) and decay[parameter.name] != spec.decay:
            parameter.regularizer = _Own(decay[parameter.name])
    return built


def decays(spec: OptimizerSpec, name: str, parameter: Any) -> bool:
    """Whether the rules of ``spec`` let ``parameter``, called ``name`` in the model, decay."""
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


@singledispatch
def _decay(spec: OptimizerSpec, _decay: Mapping[str, float]) -> dict[str, Any]:
    raise TypeError(f"no weight decay is defined for the optimizer {spec.kind}")


@_decay.register
def _(spec: CoupledSpec, _decay: Mapping[str, float]) -> dict[str, Any]:
    return {"weight_decay": spec.decay or None}


@_decay.register
def _(_spec: DecoupledSpec, decay: Mapping[str, float]) -> dict[str, Any]:
    return {"decay": decay}


@singledispatch
def _build(spec: OptimizerSpec, _common: dict[str, Any]) -> optimizer.Optimizer:
    raise TypeError(f"the optimizer {spec.kind} cannot be built")


@_build.register
def _(_spec: SGD, common: dict[str, Any]) -> optimizer.Optimizer:
    return optimizer.SGD(**common)


@_build.register
def _(spec: Momentum, common: dict[str, Any]) -> optimizer.Optimizer:
    return optimizer.Momentum(momentum=spec.momentum, use_nesterov=spec.use_nesterov, **common)


@_build.register
def _(spec: Adam, common: dict[str, Any]) -> optimizer.Optimizer:
    return optimizer.Adam(beta1=spec.beta1, beta2=spec.beta2, epsilon=spec.epsilon, **common)


@_build.register
def _(spec: AdamW, common: dict[str, Any]) -> optimizer.Optimizer:
    return decoupled.AdamW(beta1=spec.beta1, beta2=spec.beta2, epsilon=spec.epsilon, **common)


@_build.register
def _(spec: Lamb, common: dict[str, Any]) -> optimizer.Optimizer:
    return decoupled.Lamb(beta1=spec.beta1, beta2=spec.beta2, epsilon=spec.epsilon, **common)


@_build.register
def _(spec: LARS, common: dict[str, Any]) -> optimizer.Optimizer:
    return lars.LARS(momentum=spec.momentum, trust=spec.lars_coeff, epsilon=spec.epsilon, **common)


@_build.register
def _(spec: Lion, common: dict[str, Any]) -> optimizer.Optimizer:
    return lion.Lion(beta1=spec.beta1, beta2=spec.beta2, **common)


@_build.register
def _(spec: RMSProp, common: dict[str, Any]) -> optimizer.Optimizer:
    return optimizer.RMSProp(rho=spec.rho, epsilon=spec.epsilon, momentum=spec.momentum, **common)

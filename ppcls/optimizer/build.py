"""From the config of an optimizer to the optimizer."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from paddle import nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.config.optimizer import SGD, Adam, AdamW, CoupledSpec, Momentum, OptimizerSpec, RMSProp


class _Exempt(L2Decay):  # type: ignore[misc]
    """The mark of a parameter that does not decay: a regularizer of its own goes before the optimizer's."""

    def __init__(self) -> None:
        super().__init__(0.0)


def build_optimizer(
    spec: OptimizerSpec, model: nn.Layer, multi_precision: bool = False
) -> optimizer.Optimizer:
    """Builds the optimizer of all parameters of ``model``, in one group, so that ``clip_norm`` is global.

    Its learning rate is a plain number, at first the schedule's peak: call ``set_lr`` before each step.
    Parameters that the rules exclude from coupled decay get a mark (their ``regularizer``); the marks of an
    optimizer that was built earlier for the same model are taken off.

    Args:
        spec: The optimizer's config.
        model: The bare model, not wrapped for data parallelism.
        multi_precision: Whether parameters in half precision get float32 master weights.

    Returns:
        The optimizer, without state as yet.
    """
    exempt = [parameter for name, parameter in model.named_parameters() if not decays(spec, name, parameter)]
    built = _build(
        spec,
        {
            "learning_rate": spec.lr.peak,
            "parameters": model.parameters(),
            "grad_clip": _clip(spec),
            **_decay(spec, frozenset(parameter.name for parameter in exempt)),
        },
    )
    # RMSProp takes no such argument, but heeds the attribute, which paddle.amp.decorate sets as well.
    built._multi_precision = multi_precision
    for parameter in model.parameters():
        if isinstance(parameter.regularizer, _Exempt):
            parameter.regularizer = None
    if isinstance(spec, CoupledSpec) and spec.regularizer is not None:
        for parameter in exempt:
            parameter.regularizer = _Exempt()
    return built


def decays(spec: OptimizerSpec, name: str, parameter: Any) -> bool:
    """Whether the rules of ``spec`` let ``parameter``, called ``name`` in the model, decay."""
    if spec.one_dim_param_no_weight_decay and len(parameter.shape) == 1:
        return False
    return not any(part in name for part in (spec.no_weight_decay_name or "").split())


def _clip(spec: OptimizerSpec) -> nn.ClipGradBase | None:
    if spec.clip_norm is not None:
        return nn.ClipGradByGlobalNorm(spec.clip_norm)
    if spec.clip_value is not None:
        return nn.ClipGradByValue(spec.clip_value)
    return None


@singledispatch
def _decay(spec: OptimizerSpec, _exempt: frozenset[str]) -> dict[str, Any]:
    raise TypeError(f"no weight decay is defined for the optimizer {spec.kind}")


@_decay.register
def _(spec: CoupledSpec, _exempt: frozenset[str]) -> dict[str, Any]:
    return {"weight_decay": None if spec.regularizer is None else spec.regularizer.coeff}


@_decay.register
def _(spec: AdamW, exempt: frozenset[str]) -> dict[str, Any]:
    return {"weight_decay": spec.weight_decay, "apply_decay_param_fun": lambda name: name not in exempt}


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
    return optimizer.AdamW(beta1=spec.beta1, beta2=spec.beta2, epsilon=spec.epsilon, **common)


@_build.register
def _(spec: RMSProp, common: dict[str, Any]) -> optimizer.Optimizer:
    return optimizer.RMSProp(rho=spec.rho, epsilon=spec.epsilon, momentum=spec.momentum, **common)

"""Builds the optimizer that a config describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle import nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.optimizer.base import Optimizer
from ppcls.optimizer.functional import SGD_RATE, MuonOptimizer, with_plain_sgd
from ppcls.optimizer.name_rules import Factors, hidden_matrices
from ppcls.optimizer.paddle_optimizers import set_multi_precision
from ppcls.optimizer.state import DECOUPLED_DECAY, HIDDEN_MATRIX


class _OwnDecay(L2Decay):  # type: ignore[misc]
    """Marks a parameter that has its own weight decay instead of that of the optimizer."""


def build_optimizer(
    spec: Optimizer,
    model: nn.Layer,
    multi_precision: bool = False,
    factors: Mapping[str, Factors] | None = None,
) -> optimizer.Optimizer:
    """Builds an optimizer for all parameters of ``model``.

    All parameters are in one group, so that ``clip_norm`` applies to the global norm. The learning rate is a
    number, initially the peak of the schedule. Call ``set_lr`` before each update to change it. The function
    sets ``optimize_attr`` and ``regularizer`` of parameters that have their own learning rate or weight
    decay, or that Muon treats as matrices. It replaces the values that were set for an earlier optimizer of
    the same model.

    Args:
        spec: Optimizer of the config.
        model: Model, not wrapped for data parallelism.
        multi_precision: Whether half-precision parameters get float32 master weights.
        factors: Factors of learning rate and weight decay by parameter name; the result of
            `ppcls.optimizer.name_rules.factors`.

    Returns:
        The optimizer, without state.
    """
    factor = {name: (factors or {}).get(name, Factors()) for name, _ in model.named_parameters()}
    decay = {
        parameter.name: spec.decay * factor[name].decay if decays(spec, name, parameter) else 0.0
        for name, parameter in model.named_parameters()
    }
    common = {
        # A number, not a scheduler of Paddle, which would have a state of its own; see
        # `ppcls.optimizer.schedules`.
        "learning_rate": spec.lr.peak,
        "parameters": model.parameters(),
        "grad_clip": _clip(spec),
        **({"weight_decay": spec.decay or None} if spec.coupled else {"decay": decay}),
    }
    built = spec.build(**common)
    if any(SGD_RATE in parameter.optimize_attr for parameter in model.parameters()):
        built = with_plain_sgd(built)
    set_multi_precision(built, multi_precision)
    matrices = hidden_matrices(model) if isinstance(built, MuonOptimizer) else ()
    for name, parameter in model.named_parameters():
        parameter.optimize_attr[HIDDEN_MATRIX] = name in matrices
        # An architecture such as PP-HGNetV2 may set the learning rates of some parameters.
        architecture_rate = parameter.optimize_attr.setdefault(
            "given", parameter.optimize_attr["learning_rate"]
        )
        parameter.optimize_attr["learning_rate"] = architecture_rate * factor[name].rate
        parameter.optimize_attr[DECOUPLED_DECAY] = 0.0 if spec.coupled else decay[parameter.name]
        if isinstance(parameter.regularizer, _OwnDecay):
            parameter.regularizer = None
        if spec.coupled and decay[parameter.name] != spec.decay:
            parameter.regularizer = _OwnDecay(decay[parameter.name])
    return built


def decays(spec: Optimizer, name: str, parameter: Any) -> bool:
    """Returns whether the optimizer applies weight decay to the parameter ``name`` of the model."""
    if SGD_RATE in parameter.optimize_attr:
        return False
    return not spec.exempts(name, flat=len(parameter.shape) == 1)


def _clip(spec: Optimizer) -> nn.ClipGradBase | None:
    if spec.clip_norm is not None:
        return nn.ClipGradByGlobalNorm(spec.clip_norm)
    if spec.clip_value is not None:
        return nn.ClipGradByValue(spec.clip_value)
    return None

"""The state of an optimizer under names that hold in any process.

Paddle names tensors by counters of the process: ``conv2d_0.w_0`` in the first model, ``conv2d_53.w_0`` in the
next. Here a key is the parameter's name in the model and the kind of state: ``fc.weight/velocity``.
"""

from __future__ import annotations

from collections.abc import Mapping

import paddle
from paddle import Tensor, nn
from paddle.base.layer_helper import LayerHelper
from paddle.optimizer import Optimizer

MASTER = "master"
_SHOWN = 6


def optimizer_state(optimizer: Optimizer, model: nn.Layer) -> dict[str, Tensor]:
    """All that ``optimizer`` remembers, also before its first step.

    Args:
        optimizer: An optimizer of the parameters of ``model``.
        model: The bare model, already in the precision it trains in.

    Returns:
        For each parameter its accumulators, powers of Adam's betas included, and its float32 master weight
        if it has one (``.../master``). These are the optimizer's own tensors, which its next step changes.

    Raises:
        KeyError: ``optimizer`` has state of a parameter that is not in ``model``.
    """
    _create(optimizer)
    owner: dict[str, str] = {}
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        owner[parameter.name] = name
        if (master := optimizer._master_weights.get(parameter.name)) is not None:
            owner[master.name] = name  # accumulators belong to the master weight where there is one
            state[f"{name}/{MASTER}"] = master
    for kind, accumulators in optimizer._accumulators.items():
        for tensor_name, accumulator in accumulators.items():
            state[f"{owner[tensor_name]}/{kind}"] = accumulator
    return state


def load_optimizer_state(optimizer: Optimizer, model: nn.Layer, state: Mapping[str, Tensor]) -> None:
    """Puts what `optimizer_state` returned into ``optimizer``, which may be new; all of it or nothing.

    Args:
        optimizer: An optimizer of the parameters of ``model``.
        model: The bare model, already in the precision it trains in.
        state: Key to tensor, on any device.

    Raises:
        ValueError: Keys, shapes or dtypes are not those of this optimizer; the text names the first ones.
    """
    own = optimizer_state(optimizer, model)
    problems = [f"missing {key}" for key in own.keys() - state.keys()]
    problems += [f"not of this optimizer: {key}" for key in state.keys() - own.keys()]
    for key in own.keys() & state.keys():
        if _describe(own[key]) != _describe(state[key]):
            problems.append(f"{key}: expected {_describe(own[key])}, got {_describe(state[key])}")
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise ValueError(
            "the optimizer's state does not fit: " + "; ".join([*sorted(problems)[:_SHOWN], *more])
        )
    for key, tensor in own.items():
        tensor.copy_(state[key], True)


def changed_by_step(optimizer: Optimizer) -> list[Tensor]:
    """Returns all that a step of ``optimizer`` changes: weights, masters, each kind of what it remembers.

    Within each, the weights' order is that of `trained`.
    """
    _create(optimizer)
    weights, masters = trained(optimizer), optimizer._master_weights
    place = {}
    for number, weight in enumerate(weights):
        place[weight.name] = place[masters.get(weight.name, weight).name] = number
    remembered = [
        kind[name]
        for kind in optimizer._accumulators.values()
        for name in sorted(kind, key=place.__getitem__)
    ]
    return [*weights, *(masters[each.name] for each in weights if each.name in masters), *remembered]


def trained(optimizer: Optimizer) -> list[Tensor]:
    """Returns the weights that ``optimizer`` changes, those that it treats alike one after another."""
    return sorted((each for each in optimizer._parameter_list if not each.stop_gradient), key=treatment)


def treatment(weight: Tensor) -> tuple[str, float, float]:
    """Returns dtype, rate and decay of a weight's own: with those, and its numbers, an update is settled."""
    decay = -1.0 if weight.regularizer is None else weight.regularizer._coeff
    return (str(weight.dtype), weight.optimize_attr["learning_rate"], decay)


def master_weights(optimizer: Optimizer, model: nn.Layer) -> dict[str, Tensor]:
    """Returns the float32 masters of half-precision weights, by the model's names; the optimizer's own."""
    _create(optimizer)
    masters = optimizer._master_weights
    return {
        name: masters[parameter.name]
        for name, parameter in model.named_parameters()
        if parameter.name in masters
    }


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).rpartition('.')[2]} {list(tensor.shape)}"


def _create(optimizer: Optimizer) -> None:
    """Creates accumulators and master weights, which Paddle does at the first step; what exists stays."""
    optimizer.helper = LayerHelper(type(optimizer).__name__)
    trainable = [parameter for parameter in optimizer._parameter_list if not parameter.stop_gradient]
    with paddle.no_grad():
        optimizer._create_accumulators(paddle.static.default_main_program().global_block(), trainable)

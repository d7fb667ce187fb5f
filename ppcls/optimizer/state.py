"""Returns and loads the state of an optimizer, under keys that are the same in every process.

Paddle's names of tensors contain a counter of the process, such as ``conv2d_0.w_0`` in the first model and
``conv2d_53.w_0`` in the next model. A key in this module consists of the parameter's name in the model and
the kind of state, such as ``fc.weight/velocity``.

Paddle's public ``state_dict`` has those other names, and is empty before the first update. Therefore this
module reads the attributes of optimizers from which it is made (`ppcls.optimizer.paddle_optimizers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.optimizer import Optimizer

from ppcls.optimizer.paddle_optimizers import (
    accumulators_of,
    coefficient_of,
    create_state,
    master_weights_of,
    parameters_of,
)

MASTER = "master"
DECOUPLED_DECAY = "decoupled_decay"  # key of a weight's decay that does not change gradients, see `treatment`
HIDDEN_MATRIX = "hidden_matrix"  # another key: whether Muon updates the weight as a matrix
_MOST_SHOWN = 6


def optimizer_state(optimizer: Optimizer, model: nn.Layer) -> dict[str, Tensor]:
    """Returns the complete state of ``optimizer``, even before its first update.

    Args:
        optimizer: Optimizer of the parameters of ``model``.
        model: Model without wrappers, already in the precision of training.

    Returns:
        Accumulators of each parameter, including the powers of Adam's betas, and float32 master weights
        (``.../master``) if there are any. The tensors are not copies, so the next update changes them.

    Raises:
        KeyError: ``optimizer`` has state of a parameter that is not in ``model``.
    """
    create_state(optimizer)
    owner: dict[str, str] = {}
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        owner[parameter.name] = name
        if (master := master_weights_of(optimizer).get(parameter.name)) is not None:
            owner[master.name] = name  # accumulators have the name of the master weight if there is one
            state[f"{name}/{MASTER}"] = master
    for kind, accumulators in accumulators_of(optimizer).items():
        for tensor_name, accumulator in accumulators.items():
            state[f"{owner[tensor_name]}/{kind}"] = accumulator
    return state


def load_optimizer_state(
    optimizer: Optimizer, model: nn.Layer, state: Mapping[str, Tensor | NDArray[Any]]
) -> None:
    """Loads a result of `optimizer_state` into ``optimizer``, which may be new.

    Arrays are converted one by one, so that there is no second copy of the whole state.

    Args:
        optimizer: Optimizer of the parameters of ``model``.
        model: Model without wrappers, already in the precision of training.
        state: Tensors on any device, or arrays, by key.

    Raises:
        ValueError: Keys, shapes or dtypes differ from those of the optimizer. No tensor is changed. The
            message names the first differences.
    """
    current = optimizer_state(optimizer, model)
    problems = [f"missing {key}" for key in current.keys() - state.keys()]
    problems += [f"unknown {key}" for key in state.keys() - current.keys()]
    for key in current.keys() & state.keys():
        if _describe(current[key]) != _describe(state[key]):
            problems.append(f"{key}: expected {_describe(current[key])}, got {_describe(state[key])}")
    if problems:
        rest = len(problems) - _MOST_SHOWN
        shown = [*sorted(problems)[:_MOST_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
        raise ValueError("the state does not fit the optimizer: " + "; ".join(shown))
    with paddle.no_grad():
        for key, tensor in current.items():
            tensor.copy_(paddle.to_tensor(state[key]), True)


def changed_by_step(optimizer: Optimizer) -> list[Tensor]:
    """Returns all tensors that an update changes: weights, master weights, and each kind of accumulators.

    Each of these groups has the order of `trained`.
    """
    create_state(optimizer)
    weights = trained(optimizer)
    masters = master_weights_of(optimizer)
    order = {}
    for number, weight in enumerate(weights):
        order[weight.name] = order[masters.get(weight.name, weight).name] = number
    accumulators = [
        kind[name]
        for kind in accumulators_of(optimizer).values()
        for name in sorted(kind, key=order.__getitem__)
    ]
    return [*weights, *(masters[weight.name] for weight in weights if weight.name in masters), *accumulators]


def trained(optimizer: Optimizer) -> list[Tensor]:
    """Returns the trained weights, sorted by `treatment`."""
    return sorted(
        (parameter for parameter in parameters_of(optimizer) if not parameter.stop_gradient), key=treatment
    )


def treatment(weight: Tensor) -> tuple[str, bool, float, float, float]:
    """Returns what is equal for weights with the same update rule.

    Returns:
        The dtype, whether the weight is a hidden matrix of Muon, the rate factor and the weight decays.
    """
    decay = -1.0 if weight.regularizer is None else coefficient_of(weight.regularizer)
    attributes = weight.optimize_attr
    decoupled = attributes.get(DECOUPLED_DECAY, 0.0)
    return (str(weight.dtype), is_hidden_matrix(weight), attributes["learning_rate"], decay, decoupled)


def is_hidden_matrix(weight: Tensor) -> bool:
    """Returns whether Muon updates a weight as a matrix."""
    return bool(weight.optimize_attr.get(HIDDEN_MATRIX))


def accumulator(optimizer: Optimizer, kind: str, weight: Tensor) -> Tensor:
    """Returns one of a weight's accumulators, such as ``moment1``. See `create_state`."""
    return accumulators_of(optimizer)[kind][master_weights_of(optimizer).get(weight.name, weight).name]


def master_weights(optimizer: Optimizer, model: nn.Layer) -> dict[str, Tensor]:
    """Returns the optimizer's float32 master weights, by the names of their parameters in ``model``."""
    create_state(optimizer)
    masters = master_weights_of(optimizer)
    return {
        name: masters[parameter.name]
        for name, parameter in model.named_parameters()
        if parameter.name in masters
    }


def _describe(value: Tensor | NDArray[Any]) -> str:
    return f"{str(value.dtype).rpartition('.')[2]} {list(value.shape)}"

"""Reads and sets what Paddle's optimizers keep only in private attributes.

Decisions:
- This is the only module with these attributes. Only the subclasses in `ppcls.optimizer.functional` use
  others: they override the private methods with which Paddle's optimizers update a parameter.
- Paddle 2.6.2 and 3.3.1 have public methods only for the learning rate and for ``state_dict``. This is empty
  before the first update, and has names that contain a counter of the process (`ppcls.optimizer.state`).
  Gradient clipping, the rule of an update and the regularization can't be read in a public way.
- To remember the arguments of an optimizer is no alternative, because users' optimizers are Paddle's, too.
- `tests/optimizer/test_paddle_optimizers.py` fails if a version of Paddle renames one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import paddle
from paddle import Tensor, nn, optimizer
from paddle.base.layer_helper import LayerHelper
from paddle.regularizer import L2Decay


class MomentumRule(NamedTuple):
    """Settings of `paddle.optimizer.Momentum`.

    Attributes:
        momentum: Factor of the previous velocity.
        nesterov: Whether the momentum is Nesterov's.
        rescale: Factor of all gradients.
    """

    momentum: float = 0.0
    nesterov: bool = False
    rescale: float = 1.0


class AdamRule(NamedTuple):
    """Settings of Paddle's Adam, AdamW and LAMB.

    Attributes:
        beta1: Decay of the average of the gradient.
        beta2: Decay of the average of the squared gradient.
        epsilon: Number that is added to the denominator.
    """

    beta1: float
    beta2: float
    epsilon: float


class RMSPropRule(NamedTuple):
    """Settings of `paddle.optimizer.RMSProp`.

    Attributes:
        rho: Decay of the average of the squared gradient.
        momentum: Factor of the previous velocity.
        epsilon: Number that is added to the average.
        centered: Whether the square of the averaged gradient is subtracted.
    """

    rho: float
    momentum: float
    epsilon: float
    centered: bool


def parameters_of(built: optimizer.Optimizer) -> list[Tensor]:
    """Returns all parameters of an optimizer, also those that are not trained."""
    parameters: list[Tensor] = built._parameter_list
    return parameters


def master_weights_of(built: optimizer.Optimizer) -> dict[str, Tensor]:
    """Returns the float32 master weights by Paddle's names of the parameters; see `create_state`."""
    masters: dict[str, Tensor] = built._master_weights
    return masters


def accumulators_of(built: optimizer.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Returns the accumulators by kind and by Paddle's names of the parameters; see `create_state`.

    A parameter with a master weight has the name of its master weight.
    """
    accumulators: dict[str, dict[str, Tensor]] = built._accumulators
    return accumulators


def create_state(built: optimizer.Optimizer) -> None:
    """Creates missing accumulators and master weights, as Paddle does in the first update."""
    built.helper = LayerHelper(type(built).__name__)
    trainable = [parameter for parameter in parameters_of(built) if not parameter.stop_gradient]
    with paddle.no_grad():
        built._create_accumulators(paddle.static.default_main_program().global_block(), trainable)


def set_multi_precision(built: optimizer.Optimizer, enabled: bool) -> None:
    """Sets whether half-precision parameters get float32 master weights.

    RMSProp has no argument for this. `paddle.amp.decorate` sets the same attribute.
    """
    built._multi_precision = enabled


def clipping_of(built: optimizer.Optimizer) -> nn.ClipGradBase | None:
    """Returns the gradient clipping of an optimizer."""
    return built._grad_clip


def learning_rate_tensor(built: optimizer.Optimizer) -> Tensor:
    """Returns the learning rate on the device, which ``set_lr`` changes. The first step would create it."""
    built._create_global_learning_rate()
    return built._global_learning_rate()


def parameter_rate(built: optimizer.Optimizer, pair: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the learning rate of a parameter, given with its gradient, on the device."""
    return built._create_param_lr(pair)


def coefficient_of(regularizer: L2Decay) -> float:
    """Returns the weight decay of a regularizer."""
    return float(regularizer._coeff)


def optimizer_decay(built: optimizer.Optimizer) -> float:
    """Returns the weight decay of parameters without a regularizer of their own; 0 for none."""
    if built.regularization is not None:
        return coefficient_of(built.regularization)
    # Momentum keeps it in these attributes instead.
    method, decay = momentum_decay(built)
    return decay if method == "l2_decay" else 0.0


def momentum_decay(built: optimizer.Optimizer) -> tuple[str, float]:
    """Returns the kind and the factor of the weight decay of `paddle.optimizer.Momentum`; "" for none."""
    return getattr(built, "_regularization_method", ""), getattr(built, "_regularization_coeff", 0.0)


def momentum_rule(built: optimizer.Optimizer) -> MomentumRule:
    """Returns the settings of Momentum; those of plain SGD for another optimizer."""
    if not isinstance(built, optimizer.Momentum):
        return MomentumRule()
    return MomentumRule(built._momentum, built._use_nesterov, built._rescale_grad)


def adam_rule(built: optimizer.Optimizer) -> AdamRule:
    """Returns the settings of Adam, AdamW or LAMB."""
    return AdamRule(float(built._beta1), float(built._beta2), built._epsilon)


def rmsprop_rule(built: optimizer.RMSProp) -> RMSPropRule:
    """Returns the settings of RMSProp."""
    return RMSPropRule(built._rho, built._momentum, built._epsilon, built._centered)


def apply_gradients(built: optimizer.Optimizer, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Updates parameters with gradients that are elsewhere than in ``parameter.grad``."""
    return built._apply_optimize(None, None, list(pairs))

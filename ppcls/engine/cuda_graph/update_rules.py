"""How the kernels in update.cu compute the updates of each optimizer.

To add an optimizer, write its kernels in update.cu and its rule here.
tests/engine/cuda_graph/test_fused_update.py compares the kernels with the optimizer itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from paddle import nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.optimizer.functional import (
    AdamWPerParameter,
    LambPerParameter,
    LarsOptimizer,
    LionOptimizer,
    MuonOptimizer,
    ScheduleFreeAdamWOptimizer,
)
from ppcls.optimizer.paddle_optimizers import (
    accumulators_of,
    adam_rule,
    clipping_of,
    create_state,
    master_weights_of,
    momentum_rule,
    rmsprop_rule,
)
from ppcls.optimizer.state import accumulator, is_hidden_matrix, trained, treatment


class Work(Enum):
    """What the threads of a kernel share: elements, elements whose blocks belong to a tensor, or numbers."""

    ELEMENTS = auto()
    TENSORS = auto()
    NUMBERS = auto()


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a kernel for weights with equal settings.

    Attributes:
        kernel: Name of the kernel.
        settings: Its last floating-point arguments.
        work: What its threads share.
    """

    kernel: str
    settings: tuple[float, ...] = ()
    work: Work = Work.ELEMENTS


@dataclass(frozen=True)
class Rule:
    """The update rule of an optimizer.

    Attributes:
        launches: Returns the launches, in order.
        kinds: Number of stored tensors with the shapes of the weights.
        numbers: Number of stored numbers per weight.
        missing: Number of stored tensors that the kernels know, but the optimizer does not have.
    """

    launches: Callable[[Any], list[KernelLaunch]]
    kinds: int
    numbers: int = 0
    missing: int = 0


def find_rule(built: optimizer.Optimizer) -> Rule | None:
    """Returns the rule of an optimizer; None if the kernels do not support it with its settings."""
    rule = _RULES.get(type(built))
    if rule is None or not (_supports_clipping(built) and _supports_decay(built)):
        return None
    if isinstance(built, optimizer.RMSProp) and rmsprop_rule(built).centered:
        return None
    create_state(built)
    kinds = stored_kinds(built)
    if len(kinds) != rule.kinds + rule.numbers or not _equal_numbers(built, kinds[rule.kinds :]):
        return None
    return rule


def stored_kinds(built: optimizer.Optimizer) -> list[str]:
    """Returns the kinds of accumulators of the weights that kernels update, in the order of the kernels."""
    weight = next((weight for weight in trained(built) if not is_hidden_matrix(weight)), None)
    if weight is None:
        return []
    name = master_weights_of(built).get(weight.name, weight).name
    return [kind for kind, stored in accumulators_of(built).items() if name in stored]


def _supports_clipping(built: optimizer.Optimizer) -> bool:
    clip = clipping_of(built)
    return clip is None or (
        type(clip) is nn.ClipGradByGlobalNorm and all(weight.need_clip for weight in trained(built))
    )


def _supports_decay(built: optimizer.Optimizer) -> bool:
    decays = [built.regularization, *(weight.regularizer for weight in trained(built))]
    return all(decay is None or isinstance(decay, L2Decay) for decay in decays)


def _equal_numbers(built: optimizer.Optimizer, kinds: list[str]) -> bool:
    """Returns whether one stored number suffices for all weights with equal settings."""
    weights = [weight for weight in trained(built) if not is_hidden_matrix(weight)]
    groups = [treatment(weight) for weight in weights]
    for kind in kinds:
        values = [accumulator(built, kind, weight).item() for weight in weights]
        if len(set(zip(groups, values, strict=True))) != len(set(groups)):
            return False
    return True


def _adam(coupled: bool) -> Callable[[Any], list[KernelLaunch]]:
    def launches(built: Any) -> list[KernelLaunch]:
        beta1, beta2, epsilon = adam_rule(built)
        return [
            KernelLaunch("adam", (beta1, beta2, epsilon, float(coupled))),
            KernelLaunch("advance_powers", (beta1, beta2), Work.NUMBERS),
        ]

    return launches


def _momentum(built: Any) -> list[KernelLaunch]:
    momentum, nesterov, _ = momentum_rule(built)
    return [KernelLaunch("momentum", (momentum, float(nesterov)))]


def _rmsprop(built: Any) -> list[KernelLaunch]:
    rule = rmsprop_rule(built)
    return [KernelLaunch("rmsprop", (rule.rho, rule.momentum, rule.epsilon))]


def _lamb(built: Any) -> list[KernelLaunch]:
    beta1, beta2, epsilon = adam_rule(built)
    settings = (beta1, beta2, epsilon)
    return [
        KernelLaunch("lamb_moments", settings, Work.TENSORS),
        KernelLaunch("lamb", settings, Work.TENSORS),
        KernelLaunch("advance_powers", (beta1, beta2), Work.NUMBERS),
    ]


def _lars(built: Any) -> list[KernelLaunch]:
    settings = built.settings
    return [KernelLaunch("lars_norms", settings, Work.TENSORS), KernelLaunch("lars", settings, Work.TENSORS)]


def _lion(built: Any) -> list[KernelLaunch]:
    beta1, beta2 = built.settings
    return [KernelLaunch("lion", (beta1, beta2, 1 - beta1, 1 - beta2))]


def _schedule_free(built: Any) -> list[KernelLaunch]:
    beta1, beta2, epsilon = built.settings
    settings = (beta1, beta2, epsilon, 1 - beta1, 1 - beta2)
    return [
        KernelLaunch("advance_schedule_free", settings, Work.NUMBERS),
        KernelLaunch("schedule_free", settings),
    ]


_RULES: dict[type, Rule] = {
    optimizer.SGD: Rule(_momentum, kinds=0, missing=1),
    optimizer.Momentum: Rule(_momentum, kinds=1),
    optimizer.Adam: Rule(_adam(coupled=True), kinds=2, numbers=2),
    AdamWPerParameter: Rule(_adam(coupled=False), kinds=2, numbers=2),
    MuonOptimizer: Rule(_adam(coupled=False), kinds=2, numbers=2),  # of all weights but its matrices
    optimizer.RMSProp: Rule(_rmsprop, kinds=3),
    LambPerParameter: Rule(_lamb, kinds=2, numbers=2),
    LarsOptimizer: Rule(_lars, kinds=1),
    LionOptimizer: Rule(_lion, kinds=1),
    ScheduleFreeAdamWOptimizer: Rule(_schedule_free, kinds=2, numbers=2),
}

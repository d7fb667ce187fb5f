"""Configs of all optimizers, for tests."""

from __future__ import annotations

from typing import Any

from ppcls.optimizer.base import DecoupledOptimizer, Optimizer
from ppcls.registry import OPTIMIZERS

LR = 0.1
COEFF = 0.3
NAMES = ("SGD", "Momentum", "Adam", "AdamW", "RMSProp", "Lamb", "LARS", "Lion", "Muon", "ScheduleFreeAdamW")


def make_spec(name: str, decay: float = COEFF, **fields: Any) -> Optimizer:
    """Returns the config of the optimizer ``name`` with a constant rate and a weight decay."""
    kind: type[Optimizer] = OPTIMIZERS[name]
    if issubclass(kind, DecoupledOptimizer):
        fields["weight_decay"] = decay
    elif decay:
        fields["regularizer"] = {"name": "L2", "coeff": decay}
    lr = {"name": "Constant", "learning_rate": LR}
    return kind.model_validate({"lr": lr, **fields})

"""Configs of all optimizers, for tests."""

from __future__ import annotations

from typing import Any

from ppcls.config.sections import optimizer as specs

LR = 0.1
COEFF = 0.3
NAMES = ("SGD", "Momentum", "Adam", "AdamW", "RMSProp", "Lamb", "LARS", "Lion")


def make_spec(name: str, decay: float = COEFF, **fields: Any) -> specs.OptimizerSpec:
    """Returns the config of the optimizer ``name`` with a constant rate and a weight decay."""
    kind: type[specs.OptimizerSpec] = getattr(specs, name)
    if issubclass(kind, specs.DecoupledSpec):
        fields["weight_decay"] = decay
    elif decay:
        fields["regularizer"] = {"name": "L2", "coeff": decay}
    lr = {"name": "Constant", "learning_rate": LR}
    return kind.model_validate({"lr": lr, **fields})

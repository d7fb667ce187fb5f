"""What a model gives: logits, or several things by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from paddle import Tensor

Outputs: TypeAlias = Tensor | dict[str, Tensor]  # [B, ...] each

LOGITS = "logits"


def layer_output_name(model: str, layer: str) -> str:
    """Returns the name of what a layer of one of several models gives."""
    return f"{model}.{layer}"


def map_outputs(outputs: Outputs, change: Callable[[Tensor], Tensor]) -> Outputs:
    """Returns ``outputs`` with each tensor changed."""
    if isinstance(outputs, dict):
        return {name: change(each) for name, each in outputs.items()}
    return change(outputs)


def first_rows(outputs: Outputs, count: int) -> Outputs:
    """Returns the first ``count`` rows of each tensor."""
    return map_outputs(outputs, lambda each: each if len(each) == count else each[:count])


def zero_loss(outputs: Outputs) -> Tensor:
    """Returns 0.0, a float32 scalar whose gradient is 0 for all that is in ``outputs``."""
    tensors = outputs.values() if isinstance(outputs, dict) else (outputs,)
    return sum(each.astype("float32").sum() * 0.0 for each in tensors)


def get_logits(outputs: Outputs) -> Tensor:
    """Returns the logits, [B, C]."""
    return outputs[LOGITS] if isinstance(outputs, dict) else outputs

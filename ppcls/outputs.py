"""Model outputs: the logits, or several tensors by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

# Losses name the outputs that they use, and are checked before Paddle is imported.
if TYPE_CHECKING:
    from paddle import Tensor

Outputs: TypeAlias = "Tensor | dict[str, Tensor]"  # the shape of each tensor is [B, ...]

LOGITS = "logits"
FEATURES = "features"  # embeddings
BACKBONE = "backbone"  # input of the neck of an embedding model
AUXILIARY = ("auxiliary1", "auxiliary2")  # logits of GoogLeNet's auxiliary classifiers


def layer_output_name(model: str, layer: str) -> str:
    """Returns the key of a layer's output among the outputs of several models."""
    return f"{model}.{layer}"


def map_outputs(outputs: Outputs, change: Callable[[Tensor], Tensor]) -> Outputs:
    """Returns ``outputs`` with ``change`` applied to each tensor."""
    if isinstance(outputs, dict):
        return {name: change(tensor) for name, tensor in outputs.items()}
    return change(outputs)


def as_list(outputs: Outputs) -> list[Tensor]:
    """Returns the tensors of ``outputs``."""
    return list(outputs.values()) if isinstance(outputs, dict) else [outputs]


def first_rows(outputs: Outputs, count: int) -> Outputs:
    """Returns the first ``count`` rows of each tensor."""
    return map_outputs(outputs, lambda tensor: tensor if len(tensor) == count else tensor[:count])


def zero_loss(outputs: Outputs) -> Tensor:
    """Returns a float32 scalar 0.0 that depends on all ``outputs`` and gives each a gradient of 0."""
    return sum(tensor.astype("float32").sum() * 0.0 for tensor in as_list(outputs))


def get_logits(outputs: Outputs) -> Tensor:
    """Returns the logits, [B, C]."""
    return outputs[LOGITS] if isinstance(outputs, dict) else outputs

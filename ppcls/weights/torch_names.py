"""Converts PyTorch's names and layouts of weights to Paddle's.

BatchNorm's statistics have other names, and linear layers store their weights transposed. A model can
translate names of other implementations by a method ``translate_torch_name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from paddle import nn

_STATISTICS = {"running_mean": "_mean", "running_var": "_variance"}
_COUNTER = "num_batches_tracked"


def is_torch(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Returns whether the names are PyTorch's: whether BatchNorm's statistics are called as there."""
    return any(name.rpartition(".")[2] in (*_STATISTICS, _COUNTER) for name in arrays)


def from_torch(model: nn.Layer, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns the weights under the names and in the layouts of a Paddle model.

    Args:
        model: Model that the weights are for.
        arrays: Weights from PyTorch.
    """
    linear = {name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)}
    translate = getattr(model, "translate_torch_name", lambda name: name)
    converted = {}
    for name, array in arrays.items():
        layer, _, parameter = translate(name).rpartition(".")
        if parameter == _COUNTER:
            continue
        transposed = layer in linear and parameter == "weight" and array.ndim == 2
        key = f"{layer}.{_STATISTICS.get(parameter, parameter)}"
        converted[key] = array.T if transposed else array
    return converted

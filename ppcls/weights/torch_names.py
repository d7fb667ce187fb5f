"""Converts PyTorch's names and layouts of weights to Paddle's.

BatchNorm's statistics have other names, and linear layers store their weights transposed. Names of timm and
torchvision are translated by `timm_names`, those of other implementations by a model's own method
``translate_torch_name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from paddle import nn

from ppcls.weights.timm_names import timm_names

_STATISTICS = {"running_mean": "_mean", "running_var": "_variance"}
_COUNTER = "num_batches_tracked"


def is_torch(model: nn.Layer, arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Returns whether the weights are PyTorch's.

    They are if BatchNorm's statistics have PyTorch's names. Weights without statistics are PyTorch's if
    linear layers are transposed, or if no linear layer of the model is among them.
    """
    if any(name.rpartition(".")[2] in (*_STATISTICS, _COUNTER) for name in arrays):
        return True
    if any(name.rpartition(".")[2] in _STATISTICS.values() for name in arrays):
        return False
    linear = _linear_weights(model)
    common = [name for name in linear if name in arrays and arrays[name].ndim == 2]
    if not common:
        return bool(linear) and any(array.ndim == 2 for array in arrays.values())
    fit = [arrays[name].shape == linear[name] for name in common]
    transposed = [arrays[name].shape[::-1] == linear[name] for name in common]
    return sum(transposed) > sum(fit)


def from_torch(
    model: nn.Layer, arrays: Mapping[str, NDArray[Any]], source: str = ""
) -> dict[str, NDArray[Any]]:
    """Returns the weights under the names and in the layouts of a Paddle model.

    Args:
        model: Model that the weights are for.
        arrays: Weights from PyTorch.
        source: The file or its name on the hub.

    Raises:
        UserError: The network differs from the one of the same name in timm and torchvision.
    """
    linear = _linear_weights(model)
    translate = getattr(model, "translate_torch_name", None)
    if translate is None:
        translate = timm_names(model, {_paddle_name(name) for name in arrays}, source)
    converted = {}
    for name, array in arrays.items():
        if name.endswith(_COUNTER):
            continue
        key = _paddle_name(translate(name))
        if key in linear and array.ndim == 4 and array.shape[2:] == (1, 1):
            array = array[:, :, 0, 0]  # timm uses convolutions as linear layers
        converted[key] = array.T if key in linear and array.ndim == 2 else array
    return converted


def _paddle_name(name: str) -> str:
    layer, _, parameter = name.rpartition(".")
    parameter = _STATISTICS.get(parameter, parameter)
    return f"{layer}.{parameter}" if layer else parameter


def _linear_weights(model: nn.Layer) -> dict[str, tuple[int, ...]]:
    """Returns the names of the weights of linear layers, and their shapes."""
    return {
        f"{name}.weight": tuple(layer.weight.shape)
        for name, layer in model.named_sublayers()
        if isinstance(layer, nn.Linear)
    }

"""Converts the names and layouts of PyTorch's weights to those of Paddle.

BatchNorm's statistics have other names in PyTorch, and linear layers have transposed weights. `timm_names`
translates the names of timm and torchvision. A model's method ``translate_torch_name`` translates the names
of other implementations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from ppcls.arch.kernels.paddle_layers import epsilon_of
from ppcls.arch.public.names import apply_rules
from ppcls.arch.public_names import public_names
from ppcls.weights.timm_names import Translation, read_names, write_names

_STATISTICS = {"running_mean": "_mean", "running_var": "_variance"}
_COUNTER = "num_batches_tracked"
_AVERAGE_COUNTER = "n_averaged"  # in the state dict of torch.optim.swa_utils.AveragedModel
_PIXEL_POSITIONS = "pixel_pos"  # weight of TNT: [1, C, H, W] in timm, [1, H * W, C] in ppcls
# Convolutions of timm that are linear layers in ppcls, and the sides of their kernels.
_AS_CONVOLUTIONS = {
    ".se.fc1.": 1,
    ".se.fc2.": 1,
    ".se.conv_reduce.": 1,
    ".se.conv_expand.": 1,
    ".conv_head.": 1,
    ".pre_logits.fc1.": 7,
    ".pre_logits.fc2.": 1,
}


def is_torch(model: nn.Layer, arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Returns whether the weights have PyTorch's names and layouts.

    This is the case if BatchNorm's statistics have PyTorch's names. Weights without such statistics are those
    of PyTorch if linear layers are transposed, or if they contain no linear layer of the model.
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
    """Returns PyTorch's weights with the names and layouts of a Paddle model.

    Args:
        model: Model for the weights.
        arrays: Weights from PyTorch, by name.
        source: Path of the file, or its name on the Hugging Face hub.

    Raises:
        UserError: The network differs from the network with the same name in timm and torchvision.
    """
    arrays = _without_wrappers(model, arrays)
    statistics = {name: _paddle_name(name) for name in arrays if not _is_ignored(name)}
    translate = getattr(model, "translate_torch_name", None)
    names = {name: translate(name) if translate else name for name in statistics.values()}
    if all(name == key for name, key in names.items()):
        counters = [name for name in arrays if name.endswith(_COUNTER)]
        translation = read_names(model, [*names, *counters], source)
    else:
        translation = Translation(names)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    linear = _linear_weights(model)
    converted = {}
    for name, renamed in statistics.items():
        key = translation.names.get(renamed, renamed)
        array = arrays[name]
        if key in linear and array.ndim >= 2:
            array = array.reshape(len(array), -1).T  # a linear layer that is a convolution in timm
        elif name == _PIXEL_POSITIONS and array.ndim == 4:
            array = array.reshape(*array.shape[:2], -1).transpose(0, 2, 1)
        elif array.ndim != len(shapes.get(key, ())) > 0 and array.size == math.prod(shapes[key]):
            # In torchvision, layer scale is [C, 1, 1]. In ppcls, ReXNet's classifier is a convolution.
            array = array.reshape(shapes[key])
        converted[key] = _scale(array, translation.factors.get(key, 1.0))
    for bias, mean in translation.biases.items():
        if bias in converted:
            converted[mean] = converted[mean] - converted.pop(bias)
    unused = {name: tensor.numpy() for name, tensor in model.state_dict().items() if _is_unused(model, name)}
    return _change_epsilon(model, {**unused, **converted}, translation.epsilon)


def _without_wrappers(model: nn.Layer, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Returns weights without the prefixes of modules that contained the network in PyTorch.

    Such modules are DistributedDataParallel (``module.``), a compiled network (``_orig_mod.``) and the class
    of a training script, such as a LightningModule with the attribute ``model``.
    """
    named = {name: array for name, array in arrays.items() if name != _AVERAGE_COUNTER}
    own = model.state_dict().keys()
    public = public_names(model)
    rules = (public.timm_rules(model) or [], public.torchvision_rules(model))
    parts = {name.partition(".")[0] for name in own}
    parts |= {apply_rules(each, name).partition(".")[0] for each in rules for name in own}
    while True:
        first = {name.partition(".")[0] for name in named}
        if len(first) != 1 or first <= parts or any("." not in name for name in named):
            return named
        named = {name.partition(".")[2]: array for name, array in named.items()}


def to_timm(
    model: nn.Layer, arrays: Mapping[str, NDArray[Any]], architecture: str
) -> dict[str, NDArray[Any]]:
    """Returns a model's weights with the names and layouts of timm.

    Args:
        model: The model.
        arrays: Weights of the model, by name.
        architecture: Name of the architecture, for error messages.

    Raises:
        UserError: timm has no network that computes the same numbers.
    """
    translation = write_names(model, architecture)
    arrays = _change_epsilon(model, arrays, translation.epsilon, to_file=True)
    linear = _linear_weights(model)
    derived = tuple(getattr(model, "derived", ()))
    kernels = {**_AS_CONVOLUTIONS, **public_names(model).as_convolutions}
    converted = {bias: np.zeros_like(arrays[mean]) for bias, mean in translation.biases.items()}
    for name, key in translation.names.items():
        if key.endswith(derived or ("\0",)) or _is_unused(model, key):
            continue
        array = _scale(arrays[key], 1 / translation.factors.get(key, 1.0))
        if key in linear:
            array = array.T
            if kernel := next((side for layer, side in kernels.items() if layer in f".{name}"), 0):
                array = array.reshape(len(array), -1, kernel, kernel)
        elif name == "head.fc.weight":
            array = array.reshape(array.shape[:2])  # the classifier of ReXNet
        elif name == _PIXEL_POSITIONS:
            side = math.isqrt(array.shape[1])
            array = array.transpose(0, 2, 1).reshape(1, -1, side, side)
        layer, _, parameter = name.rpartition(".")
        parameter = {ours: theirs for theirs, ours in _STATISTICS.items()}.get(parameter, parameter)
        converted[f"{layer}.{parameter}" if layer else parameter] = np.ascontiguousarray(array)
    return converted


def _change_epsilon(
    model: nn.Layer, arrays: Mapping[str, NDArray[Any]], epsilon: float | None, *, to_file: bool = False
) -> dict[str, NDArray[Any]]:
    """Adapts BatchNorm's weights to another epsilon, so that its outputs at inference do not change.

    Args:
        model: Model for the weights.
        arrays: Weights, by name.
        epsilon: Epsilon of the other network; None if it is the same as in the model.
        to_file: Whether to adapt the model's weights to the other network. If False, weights of the other
            network are adapted to the model.
    """
    changed = dict(arrays)
    if epsilon is None:
        return changed
    for name, layer in model.named_sublayers():
        if isinstance(layer, nn.BatchNorm2D) and f"{name}._variance" in changed:
            variance = changed[f"{name}._variance"].astype(np.float64)
            ratio = np.sqrt((variance + epsilon_of(layer)) / (variance + epsilon))
            weight = changed[f"{name}.weight"]
            changed[f"{name}.weight"] = (weight * (1 / ratio if to_file else ratio)).astype(weight.dtype)
    return changed


def _scale(array: NDArray[Any], factor: float) -> NDArray[Any]:
    return array if factor == 1 else (array * factor).astype(array.dtype)


def _is_ignored(name: str) -> bool:
    """Returns whether ppcls does not need a weight: counters, and the second classifier of InceptionV3."""
    return name.endswith(_COUNTER) or name.startswith("AuxLogits.")


def _is_unused(model: nn.Layer, name: str) -> bool:
    """Returns whether a weight is not used, and exists only because PaddleClas's files contain it."""
    return name.endswith(getattr(model, "unused", ("\0",)))


def _paddle_name(name: str) -> str:
    layer, _, parameter = name.rpartition(".")
    parameter = _STATISTICS.get(parameter, parameter)
    return f"{layer}.{parameter}" if layer else parameter


def _linear_weights(model: nn.Layer) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the weights of all linear layers, by name."""
    return {
        f"{name}.weight": tuple(layer.weight.shape)
        for name, layer in model.named_sublayers()
        if isinstance(layer, nn.Linear)
    }

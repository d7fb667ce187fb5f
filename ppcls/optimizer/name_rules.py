"""Selects parameters by name, to freeze them or to scale their learning rate and weight decay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from paddle import nn

from ppcls.arch.kernels.paddle_layers import use_running_statistics
from ppcls.errors import UserError, counted
from ppcls.optimizer.base import Optimizer
from ppcls.registry import suggest

# Patterns of the names of blocks, such as `blocks.3`, `layers.0.blocks.1`, `stages.2.1`, `layer1.0`,
# `features.4`.
_BLOCKS = [
    re.compile(rf".*(?:^|\.)_?(?:{name})(?=\.)")
    for name in (r"blocks?\d*\.\d+", r"stages?\d*\.\d+(?:\.\d+)?", r"(?:layers?\d*|features)\.\d+")
]


_BATCH_NORMS = (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)
CLASSIFIER = "classifier"  # pattern that matches the layers that return the logits, whatever their names are


class Factors(NamedTuple):
    """The factors for the learning rate and the weight decay of a parameter."""

    rate: float = 1.0
    decay: float = 1.0


def freeze(spec: Optimizer, model: nn.Layer) -> frozenset[str]:
    """Freezes the parameters that ``Optimizer.freeze`` or ``Optimizer.train_only`` selects.

    Frozen parameters get no gradient. A BatchNorm layer with a frozen weight and bias normalizes with its
    running statistics even in training, and does not update them. Otherwise the output of the layer would
    change although its parameters are frozen.

    Args:
        spec: Settings of the optimizer.
        model: Model with its initial weights.

    Returns:
        Names of the frozen parameters and of the statistics of frozen BatchNorm layers.

    Raises:
        UserError: A pattern matches no parameter, or all parameters are frozen.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if not parameter.stop_gradient}
    if spec.freeze is not None:
        chosen = _matching("freeze", spec.freeze, trained, model)
    elif spec.train_only is not None:
        chosen = trained.keys() - _matching("train_only", spec.train_only, trained, model)
    else:
        return frozenset()
    if len(chosen) == len(trained):
        raise UserError(
            "Optimizer.freeze: the patterns match all parameters, so none remain to train; remove a pattern"
        )
    for name in chosen:
        trained[name].trainable = False
    frozen = set(chosen)
    for name, layer in model.named_sublayers(include_self=True):
        if not isinstance(layer, _BATCH_NORMS):
            continue
        affine = [parameter for parameter in (layer.weight, layer.bias) if parameter is not None]
        if affine and not any(parameter.trainable for parameter in affine):
            use_running_statistics(layer)
            frozen |= {f"{name}.{statistic}".lstrip(".") for statistic in ("_mean", "_variance")}
    return frozenset(frozen)


def factors(spec: Optimizer, model: nn.Layer) -> dict[str, Factors]:
    """Returns the factors for parameters, by name. Parameters without an entry have factors of 1.

    Raises:
        UserError: A pattern matches no parameter, or ``layerwise_decay`` is set for a model without numbered
            blocks.
    """
    names = [name for name, parameter in model.named_parameters() if not parameter.stop_gradient]
    result: dict[str, Factors] = {}
    if spec.block_decay is not None:
        result = {name: Factors(rate=rate) for name, rate in layer_rates(names, spec.block_decay).items()}
    every = [name for name, _ in model.named_parameters()]
    for position, rule in enumerate(spec.by_name):
        for name in _matching(f"by_name.{position}.pattern", rule.pattern, every, model):
            before = result.get(name, Factors())
            result[name] = Factors(before.rate * rule.lr_mult, before.decay * rule.decay_mult)
    return result


def layer_rates(names: Iterable[str], decay: float) -> dict[str, float]:
    """Returns factors for learning rates that decrease from block to block towards the input.

    Args:
        names: Names of a model's parameters, in the order of the model.
        decay: Factor of a block divided by the factor of the next block.

    Returns:
        Factors other than 1, by parameter name.

    Raises:
        UserError: No name contains the number of a block.
    """
    names = list(names)
    blocks = {name: block for name in names if (block := _block(name))}
    numbers = {block: number for number, block in enumerate(dict.fromkeys(blocks.values()))}
    if not numbers:
        raise UserError(
            "Optimizer.layerwise_decay: no parameter of this model is in a numbered block, such as blocks.0; "
            "set factors with Optimizer.by_name instead"
        )
    rates = {name: decay ** (len(numbers) - numbers[block]) for name, block in blocks.items()}
    for name in names:
        # Names are in the order of the model: those before the first block are embeddings, those after it
        # the head, whose factor is 1.
        if name in blocks:
            break
        rates[name] = decay ** (len(numbers) + 1)
    return rates


def _block(name: str) -> str | None:
    return next((match[0] for pattern in _BLOCKS if (match := pattern.match(name))), None)


def describe_frozen(frozen: frozenset[str], model: nn.Layer) -> str:
    """Returns a line for the log that describes the frozen parameters, which `freeze` returns."""
    sizes = {
        name: parameter.size
        for name, parameter in model.named_parameters()
        if not name.endswith(("_mean", "_variance"))
    }
    still = [name for name in sizes if name in frozen]
    norms = sum(name.endswith("_mean") for name in frozen)
    text = (
        f"frozen: {len(still)} of {counted(len(sizes), 'parameter')}, "
        f"{sum(sizes[name] for name in still) / 1e6:.2f} of {sum(sizes.values()) / 1e6:.2f} million values"
    )
    return f"{text}; {norms} BatchNorm layers keep their statistics" if norms else text


def _matching(key: str, patterns: Iterable[str], names: Iterable[str], model: nn.Layer) -> set[str]:
    known = list(names)
    matched = set[str]()
    for pattern in patterns:
        if pattern == CLASSIFIER:
            layers = {f"{layer}.{kind}" for layer in classifier_layers(model) for kind in ("weight", "bias")}
            matches = layers & set(known)
        else:
            matches = {name for name in known if fnmatchcase(name, pattern)}
        if not matches:
            prefixes = dict.fromkeys(name.partition(".")[0] for name in known)
            hint = suggest(pattern, [f"{prefix}.*" for prefix in prefixes])
            raise UserError(f"Optimizer.{key}: '{pattern}' matches no parameter of this model{hint}")
        matched |= matches
    return matched


def hidden_matrices(model: nn.Layer) -> frozenset[str]:
    """Returns the names of the weights of convolutions and linear layers that `Muon` treats as matrices.

    Weights of the first layer, of the classifier and of depthwise convolutions are none: pixels and logits
    have a meaning of their own, and the filters of depthwise convolutions do not form a matrix. The layers
    are recognized by name and shape, because `ppcls.arch.fused` has layers of its own.
    """
    shapes = {
        name: parameter.shape
        for name, parameter in model.named_parameters()
        if name.endswith("weight") and len(parameter.shape) in (2, 4)
    }
    hidden = list(shapes)[1:]
    if not hidden:
        return frozenset()
    classifier = {f"{layer}.weight" for layer in classifier_layers(model)}
    return frozenset(name for name in hidden if name not in classifier and min(shapes[name][:2]) > 1)


def classifier_layers(model: nn.Layer) -> list[str]:
    """Returns the names of the layers that return a model's logits. Distilled models of DeiT have two.

    These are the linear layers at the end of the model that have as many outputs as the last one. If the
    model does not end with linear layers, its last layer is returned. Layers that are not trained, such as
    GoogLeNet's auxiliary outputs, are considered only if no linear layer is trained.
    """
    layers = [
        (name, layer) for name, layer in model.named_sublayers() if layer.parameters(include_sublayers=False)
    ]
    trained = [
        (name, layer)
        for name, layer in layers
        if not all(parameter.stop_gradient for parameter in layer.parameters(include_sublayers=False))
    ]
    for candidates in (trained, layers):
        last_layers: list[tuple[str, int]] = []
        for name, layer in candidates:
            if isinstance(layer, nn.Linear):
                last_layers.append((name, layer.weight.shape[1]))
            else:
                last_layers.clear()
        if last_layers:
            return [name for name, outputs in last_layers if outputs == last_layers[-1][1]]
    return [layers[-1][0]]

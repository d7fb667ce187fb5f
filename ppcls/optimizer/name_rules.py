"""Which of a model's parameters are trained, and with which factors of rate and decay: by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from paddle import nn
from paddle.nn.layer.norm import _BatchNormBase

from ppcls.config.sections.optimizer import AdamW, OptimizerSpec
from ppcls.errors import UserError
from ppcls.registry import nearest

# Blocks, as models call theirs: `blocks.3`, `layers.0.blocks.1`, `stages.2.1`, `layer1.0`, `features.4`.
_BLOCKS = [
    re.compile(rf".*(?:^|\.)_?(?:{name})(?=\.)")
    for name in (r"blocks?\d*\.\d+", r"stages?\d*\.\d+(?:\.\d+)?", r"(?:layers?\d*|features)\.\d+")
]


class Factors(NamedTuple):
    """Of one parameter's learning rate and weight decay."""

    rate: float = 1.0
    decay: float = 1.0


def freeze(spec: OptimizerSpec, model: nn.Layer) -> frozenset[str]:
    """Has the optimizer leave parameters as they are, as ``freeze`` or ``train_only`` say.

    They get no gradient. A BatchNorm layer whose weight and bias are frozen normalizes by its running
    statistics, while it trains too, and these stay: else its output would change while nothing of it learns.

    Args:
        spec: The optimizer's config.
        model: The bare model, with the weights that it begins with.

    Returns:
        The names of what stays: frozen parameters, and the statistics of frozen BatchNorm layers.

    Raises:
        UserError: A pattern matches no parameter, or nothing is left to train.
    """
    trained = {name: each for name, each in model.named_parameters() if not each.stop_gradient}
    if spec.freeze is not None:
        chosen = _matching("freeze", spec.freeze, trained)
    elif spec.train_only is not None:
        chosen = trained.keys() - _matching("train_only", spec.train_only, trained)
    else:
        return frozenset()
    if len(chosen) == len(trained):
        raise UserError("Optimizer.freeze: nothing is left to train, for the patterns match every parameter")
    for name in chosen:
        trained[name].trainable = False
    kept = set(chosen)
    for name, layer in model.named_sublayers(include_self=True):
        own = [
            each
            for each in (getattr(layer, "weight", None), getattr(layer, "bias", None))
            if each is not None
        ]
        if isinstance(layer, _BatchNormBase) and own and not any(each.trainable for each in own):
            layer._use_global_stats = True
            kept |= {f"{name}.{each}".lstrip(".") for each in ("_mean", "_variance")}
    return frozenset(kept)


def factors(spec: OptimizerSpec, model: nn.Layer) -> dict[str, Factors]:
    """Returns the factors of parameters by name; those that are not in it have 1.

    Raises:
        UserError: A pattern matches no parameter, or ``layerwise_decay`` finds no numbered blocks.
    """
    names = [name for name, each in model.named_parameters() if not each.stop_gradient]
    found: dict[str, Factors] = {}
    if isinstance(spec, AdamW) and spec.layerwise_decay is not None:
        found = {name: Factors(rate=rate) for name, rate in layer_rates(names, spec.layerwise_decay).items()}
    every = [name for name, _ in model.named_parameters()]
    for position, rule in enumerate(spec.by_name):
        for name in _matching(f"by_name.{position}.pattern", rule.pattern, every):
            before = found.get(name, Factors())
            found[name] = Factors(before.rate * rule.lr_mult, before.decay * rule.decay_mult)
    return found


def layer_rates(names: Iterable[str], decay: float) -> dict[str, float]:
    """Returns the factor of each parameter's rate, which falls from block to block towards the input.

    Args:
        names: Of a model's parameters, in its order.
        decay: From each block to the one before.

    Returns:
        The factors that are not 1.

    Raises:
        UserError: No name has a number of a block in it.
    """
    names = list(names)
    block = {name: found for name in names if (found := _block(name))}
    place = {each: number for number, each in enumerate(dict.fromkeys(block.values()))}
    if not place:
        raise UserError(
            "Optimizer.layerwise_decay: no parameter of this model is in a numbered block, such as blocks.0; "
            "give factors by Optimizer.by_name instead"
        )
    rates = {name: decay ** (len(place) - place[each]) for name, each in block.items()}
    for name in names:
        if name in block:
            break
        rates[name] = decay ** (len(place) + 1)
    return rates


def _block(name: str) -> str | None:
    return next((match[0] for each in _BLOCKS if (match := each.match(name))), None)


def describe_frozen(frozen: frozenset[str], model: nn.Layer) -> str:
    """Returns one line for the log."""
    sizes = {
        name: each.size
        for name, each in model.named_parameters()
        if not name.endswith(("_mean", "_variance"))
    }
    still = [name for name in sizes if name in frozen]
    norms = sum(name.endswith("_mean") for name in frozen)
    text = (
        f"frozen: {len(still)} of {len(sizes)} parameters, {sum(sizes[name] for name in still) / 1e6:.2f} of "
        f"{sum(sizes.values()) / 1e6:.2f} million numbers"
    )
    return f"{text}; {norms} BatchNorm layers keep their statistics" if norms else text


def _matching(key: str, patterns: Iterable[str], names: Iterable[str]) -> set[str]:
    known, found = list(names), set[str]()
    for pattern in patterns:
        these = {name for name in known if fnmatchcase(name, pattern)}
        if not these:
            hint = nearest(
                pattern, [f"{part}.*" for part in dict.fromkeys(each.partition(".")[0] for each in known)]
            )
            raise UserError(f"Optimizer.{key}: '{pattern}' matches no parameter of this model{hint}")
        found |= these
    return found

"""Translates between the parameter names of ppcls and those of timm and torchvision.

If a network computes different numbers than timm's network of the same name, an error explains this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from paddle import nn

from ppcls.arch.public.names import PublicNames, apply_rules
from ppcls.arch.public_names import public_names
from ppcls.errors import UserError

_VARIANT = "Arch.timm_variant: True"
# Names of timm's networks whose weights have the same names and shapes as those of another network.
_ANTIALIASED = re.compile(r"resne[xt]t?(aa|blur)\d|efficientnet_blur_|mobilenetv4_conv_(aa|blur)_")


class Translation(NamedTuple):
    """The relation between the weights in a file and the weights of a model.

    Attributes:
        names: Name in the model for each name in the file, in which BatchNorm's statistics already have
            Paddle's names.
        epsilon: BatchNorm's epsilon in the network of the file; None if it is the same as in the model.
        factors: Factor for each weight in the file, by its name in the model. PaddleClas's dropout scales its
            output at inference. Therefore the next layer needs larger weights.
        biases: For each bias of a convolution in the file that the model does not have, the name of the mean
            of the next BatchNorm. The bias is subtracted from this mean.
    """

    names: dict[str, str]
    epsilon: float | None = None
    factors: Mapping[str, float] = MappingProxyType({})
    biases: Mapping[str, str] = MappingProxyType({})


def read_names(model: nn.Layer, names: Iterable[str], source: str) -> Translation:
    """Returns the translation of weights of timm or torchvision to those of a model.

    Args:
        model: Model for the weights.
        names: All names in the file, with Paddle's names for BatchNorm's statistics. Files of PyTorch also
            have a counter for each BatchNorm, which files of ppcls lack.
        source: Path of the file, or its name on the Hugging Face hub, for error messages.

    Raises:
        UserError: The network differs from the network with the same name in timm.
    """
    file_names = set(names)
    own = model.state_dict().keys()
    derived = tuple(f".{name}" for name in getattr(model, "derived", ()))
    identical = file_names >= {name for name in own if not name.endswith(derived)}
    if _ANTIALIASED.search(source):
        raise UserError(
            f"{source}: this network of timm smooths features before it halves their size; ppcls has no such "
            "architecture, use other weights"
        )
    public = public_names(model)
    _raise_if(public.reject_source(model, source), source)
    _check_family(model, public, source, identical=identical)
    if identical and not public.own_names:
        return Translation({name: name for name in file_names})
    _raise_if(public.reject_file(model, file_names, source), source)
    theirs = {public.current_name(name): name for name in file_names}
    pairs = [
        {theirs.get(theirs_name := apply_rules(rules, name), theirs_name): name for name in own}
        for rules in (public.timm_rules(model) or (), public.torchvision_rules(model))
    ]
    best = max(pairs, key=lambda pair: len(pair.keys() & file_names))
    epsilon = public.epsilon(model, best is pairs[0])
    return Translation(best, epsilon, public.factors(model), public.biases(best))


def write_names(model: nn.Layer, architecture: str) -> Translation:
    """Returns the translation of a model's weights to those of timm, for export.

    Args:
        model: The model.
        architecture: Name of the architecture, for error messages.

    Raises:
        UserError: timm has no network that computes the same numbers.
    """
    public = public_names(model)
    rules = public.timm_rules(model)
    _check_family(model, public, architecture, identical=False)
    if rules is None:
        raise UserError(f"{architecture}: timm has no network that computes the same numbers")
    _raise_if(public.reject_export(model, architecture), architecture)
    pairs = {apply_rules(rules, name): name for name in model.state_dict()}
    return Translation(pairs, public.epsilon(model, True), public.factors(model), public.biases(pairs))


def _raise_if(problem: str, source: str) -> None:
    if problem:
        raise UserError(f"{source}: {problem}")


def _check_family(model: nn.Layer, public: PublicNames, source: str, *, identical: bool) -> None:
    """Checks that timm has a network that computes the same numbers as a model.

    Args:
        model: The model.
        public: Declaration of its family.
        source: Path or name of the weights, for error messages.
        identical: Whether the weights have the names of the model, which is possible for weights of the
            network's authors.
    """
    difference = "" if identical else public.different
    # `PublicNames.reject_file` checks further differences.
    if not difference and not identical and public.variant and not getattr(model, "timm_variant", True):
        difference = f"{public.variant}; set {_VARIANT}"
    difference = public.reject_weights(model, source) or difference
    if difference:
        raise UserError(
            f"{source}: weights of timm or torchvision do not fit this architecture: {difference}"
        )

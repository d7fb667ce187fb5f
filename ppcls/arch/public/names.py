"""Relates the parameters of a network to those of the same network in timm and torchvision.

Each family declares a `PublicNames` beside its layers, in the class attribute ``public_names`` of its
network, because who changes a layer must see which names depend on it. ``ppcls.weights`` reads only this
class, and knows no family. Networks of ``paddle.vision`` can't have such an attribute;
`ppcls.arch.families.paddle_vision` lists theirs.

A network has rules only if it computes the same numbers as the network of timm or torchvision.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TypeAlias

from paddle import nn

Replacement: TypeAlias = str | Callable[[re.Match[str]], str]
Rule: TypeAlias = tuple[str, Replacement]
# A template, or the templates for a convolution and for its BatchNorm.
Templates: TypeAlias = Mapping[str, str | tuple[str, str]]

EPSILON = 1e-5
"""BatchNorm's epsilon in most networks of timm and torchvision."""


def _no_rules(_model: nn.Layer) -> list[Rule]:
    return []


def _same_epsilon(_model: nn.Layer, _timm: bool) -> float | None:
    return None


def _no_factors(_model: nn.Layer) -> dict[str, float]:
    return {}


def _no_biases(_names: Mapping[str, str]) -> dict[str, str]:
    return {}


def _accept_file(_model: nn.Layer, _names: Collection[str], _source: str) -> str:
    return ""


def _accept(_model: nn.Layer, _name: str) -> str:
    return ""


@dataclass(frozen=True)
class PublicNames:
    r"""The names and numbers of a family's network in timm and torchvision.

    Templates map a regular expression to a replacement. They are applied to a parameter's name one after the
    other. In a replacement, ``\1`` is the first group, ``{2*\1+1}`` is computed, and ``{\1:a b c}`` is one of
    the words, numbered from 0. ``{stage}`` and ``{block}`` are the stage of the block whose number is the
    first group, and its number in the stage. A name that no template matches is the same in both.

    Attributes:
        timm: Templates for timm's names; None for a family that timm does not have.
        torchvision: Templates for torchvision's names; None if they are the same as for timm.
        starts: Numbers of the blocks that start a stage, or a regular expression that matches the parameters
            of these blocks. By default, they follow from the attribute ``depths`` of the network.
        different: Why the networks of timm and torchvision compute other numbers; "" if they compute the
            same.
        variant: Why they do so without ``Arch.timm_variant``; "" if they compute the same.
        own_names: Whether the network always has timm's names, and the checks of files still apply.
        first_timm: Function that returns rules which precede the templates and depend on more of the network.
        first_torchvision: The same for torchvision.
        epsilon: Function of the network, and of whether a file has timm's names, that returns BatchNorm's
            epsilon in the network of the file; None if it is the same.
        factors: Function that returns the factor for each weight in the file, by its name in the network.
            PaddleClas's dropout scales its output at inference. Therefore the next layer needs larger
            weights.
        biases: Function of the translated names. For each bias of a convolution in the file that the network
            does not have, it returns the name of the mean of the next BatchNorm. The bias is subtracted from
            this mean.
        as_convolutions: Parts of timm's names of linear layers that are convolutions there, each with the
            side of the kernel.
        current_name: Function that returns the current form of an old name in a file.
        reject_source: Function of the network, and of the path or name of a file. It returns why a file of
            this name does not fit the network; "" if it may fit.
        reject_weights: Function of the network and its name. It returns why weights of timm don't fit,
            whatever the file; "" if they fit.
        reject_file: Function of the network, the names in a file, and its path or name. It returns why the
            file does not fit the network; "" if it fits.
        reject_export: Function of the network and its name that returns why timm can't read its weights; ""
            if it can.
    """

    timm: Templates | None = None
    torchvision: Templates | None = None
    starts: Sequence[int] | str = ()
    different: str = ""
    variant: str = ""
    own_names: bool = False
    first_timm: Callable[[nn.Layer], list[Rule]] = _no_rules
    first_torchvision: Callable[[nn.Layer], list[Rule]] = _no_rules
    epsilon: Callable[[nn.Layer, bool], float | None] = _same_epsilon
    factors: Callable[[nn.Layer], dict[str, float]] = _no_factors
    biases: Callable[[Mapping[str, str]], dict[str, str]] = _no_biases
    as_convolutions: Mapping[str, int] = field(default_factory=dict)
    current_name: Callable[[str], str] = str
    reject_source: Callable[[nn.Layer, str], str] = _accept
    reject_weights: Callable[[nn.Layer, str], str] = _accept
    reject_file: Callable[[nn.Layer, Collection[str], str], str] = _accept_file
    reject_export: Callable[[nn.Layer, str], str] = _accept

    def timm_rules(self, model: nn.Layer) -> list[Rule] | None:
        """Returns the rules for timm's names; None for a family that timm does not have."""
        if self.timm is None:
            return None
        return [*self.first_timm(model), *self._rules(model, self.timm)]

    def torchvision_rules(self, model: nn.Layer) -> list[Rule]:
        """Returns the rules for torchvision's names. For some families, they are the same as for timm."""
        if self.torchvision is None:
            return self.timm_rules(model) or []
        return [*self.first_torchvision(model), *self._rules(model, self.torchvision)]

    def _rules(self, model: nn.Layer, templates: Templates) -> list[Rule]:
        starts = self._stage_starts(model)
        rules: list[Rule] = []
        for pattern, template in templates.items():
            if isinstance(template, str):
                rules.append((pattern, partial(_fill, template, starts)))
            else:
                rules += conv_norm_rules(pattern, *(partial(_fill, part, starts) for part in template))
        return rules

    def _stage_starts(self, model: nn.Layer) -> Sequence[int]:
        """Returns the numbers of the blocks that start a stage."""
        if isinstance(self.starts, str):
            matches = (re.match(self.starts, name) for name in model.state_dict())
            return sorted({int(match[1]) for match in matches if match})
        return self.starts or [0, *accumulate(getattr(model, "depths", ()))]


def apply_rules(rules: Sequence[Rule], name: str) -> str:
    """Returns ``name`` after applying all rules in order."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def conv_norm_rules(pattern: str, convolution: Replacement, norm: Replacement) -> list[Rule]:
    """Returns the rules of a convolution and its BatchNorm, which have the same prefix in PaddleClas."""
    return [(rf"{pattern}_?conv\.", convolution), (rf"{pattern}(?:_batch_norm|bn)\.", norm)]


def _fill(template: str, starts: Sequence[int], match: re.Match[str]) -> str:
    """Returns the text for a match. See `PublicNames`."""

    def compute(braces: re.Match[str]) -> str:
        number, _, words = braces[1].partition(":")
        if words:
            return str(words.split()[int(number)])
        if number.startswith(("stage", "block")):
            stage = bisect(starts, int(match[1])) - 1
            number = number.replace("stage", str(stage)).replace("block", str(int(match[1]) - starts[stage]))
        parts = re.fullmatch(r"(?:(\d+)\*)?(\d+)([+-]\d+)?", number)
        assert parts is not None
        return str(int(parts[1] or 1) * int(parts[2]) + int(parts[3] or 0))

    return re.sub(r"\{(.+?)\}", compute, match.expand(template))

"""Rules that rename the parameters of ppcls to the names in timm and torchvision.

``timm_rules.yaml`` contains the rules and describes them. This file adds the rules that depend on more of the
model than the numbers of its blocks. `tests/support/timm_reference.py` compares the logits of the networks.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from paddle import nn

from ppcls.zoo import read_table

Replacement = str | Callable[[re.Match[str]], str]
Rule = tuple[str, Replacement]


def timm_rules(model: nn.Layer) -> Sequence[Rule] | None:
    """Returns the rules for timm's names; None for a family that timm does not have."""
    return _read_rules(model, "timm")


def torchvision_rules(model: nn.Layer) -> Sequence[Rule]:
    """Returns the rules for torchvision's names. For some families, they are the same as for timm."""
    rules = _read_rules(model, "torchvision")
    return (timm_rules(model) or ()) if rules is None else rules


def apply_rules(rules: Sequence[Rule], name: str) -> str:
    """Returns ``name`` after applying all rules in order."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def family_entry(model: nn.Layer, key: str) -> Any:
    """Returns the value of a key of ``timm_rules.yaml`` for a model; None if its family lacks the key."""
    families = _read_families()
    return next((families[name][key] for name in _kinds(model) if key in families.get(name, ())), None)


@cache
def _read_families() -> dict[str, Any]:
    return read_table(Path(__file__).with_suffix(".yaml"))


def _kinds(model: nn.Layer) -> Iterator[str]:
    """Yields the names of the model's class and its base classes in ``timm_rules.yaml``."""
    for kind in type(model).__mro__:
        yield ("paddle." if kind.__module__.startswith("paddle.") else "") + kind.__name__


def _read_rules(model: nn.Layer, library: str) -> list[Rule] | None:
    entry = family_entry(model, library)
    if entry is None:
        return None
    computed = next((_COMPUTED[key] for kind in _kinds(model) if (key := (kind, library)) in _COMPUTED), None)
    rules = list(computed(model)) if computed else []
    starts = _stage_starts(model)
    for pattern, template in entry.items():
        if isinstance(template, str):
            rules.append((pattern, partial(_fill, template, starts)))
        else:
            rules += _unit(pattern, *(partial(_fill, part, starts) for part in template))
    return rules


def _unit(pattern: str, convolution: Replacement, norm: Replacement) -> list[Rule]:
    """Returns the rules of a convolution and its BatchNorm."""
    return [(rf"{pattern}_?conv\.", convolution), (rf"{pattern}(?:_batch_norm|bn)\.", norm)]


def _stage_starts(model: nn.Layer) -> list[int]:
    """Returns the numbers of the blocks that start a stage."""
    starts = family_entry(model, "starts")
    if isinstance(starts, str):
        matches = (re.match(starts, name) for name in model.state_dict())
        return sorted({int(match[1]) for match in matches if match})
    return starts or [0, *accumulate(getattr(model, "depths", ()))]


def _fill(template: str, starts: Sequence[int], match: re.Match[str]) -> str:
    """Returns the text for a match. See ``timm_rules.yaml``."""

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


def _resnet(model: nn.Layer) -> list[Rule]:
    shortcuts = (layer for name, layer in model.named_sublayers() if name.endswith(".pool"))
    pooled = int(any(isinstance(layer, nn.AvgPool2D) for layer in shortcuts))  # "vd" variants, "d" in timm
    rules = _unit(r"\.short\.", f".downsample.{pooled}.", f".downsample.{pooled + 1}.")
    single = "stem.1.conv.weight" not in model.state_dict()
    return [*(_unit(r"^stem\.0\.", "conv1.", "bn1.") if single else ()), *rules]


def _mixnet(model: nn.Layer) -> list[Rule]:
    halving = model.depths[-1] // 2  # timm splits the last stage into two stages

    def start(match: re.Match[str]) -> str:
        stage = int(match[1])
        i = int(match[2]) - 1
        later = stage == len(model.depths) and i >= halving
        return f"blocks.{stage + later}.{i - later * halving}."

    return [(r"^features\.stage(\d)\.unit(\d)\.", start)]


def _levit(model: nn.Layer) -> list[Rule]:
    starts = [f"stages.0.blocks.{i}." for i in range(model.depths[0])]
    for stage, depth in enumerate(model.depths[1:], start=1):
        starts += [f"stages.{stage}.downsample."] + [f"stages.{stage}.blocks.{i}." for i in range(depth)]

    def start(match: re.Match[str]) -> str:
        block = starts[int(match[1]) // 2]
        is_mlp = int(match[1]) % 2
        return block + ("mlp." if is_mlp else "attn_downsample." if "down" in block else "attn.")

    return [(r"^blocks\.(\d+)\.(?:m\.)?", start)]


def _xception(model: nn.Layer) -> list[Rule]:
    block = re.compile(r"^(xception_\d+/\w+/block\d+|_exit_flow_\d)\.")
    order = list(dict.fromkeys(match[1] for name in model.state_dict() if (match := block.match(name))))
    return [(block.pattern, lambda match: f"blocks.{order.index(match[1])}.")]


def _torchvision_mobilenet_v3(model: nn.Layer) -> list[Rule]:
    names = model.state_dict()
    order = ("expand_conv", "bottleneck_conv", "mid_se", "linear_conv")

    def rename(match: re.Match[str]) -> str:
        block = match[1]
        parts = [part for part in order if any(name.startswith(f"blocks.{block}.{part}.") for name in names)]
        return f"features.{int(block) + 1}.block.{parts.index(match[2])}."

    return [(r"^lastconv\.", f"features.{len(model.blocks) + 1}."), (r"^blocks\.(\d+)\.(\w+)\.", rename)]


# Rules that precede those of the file, by the name of the family and the library.
_COMPUTED: dict[tuple[str, str], Callable[[nn.Layer], list[Rule]]] = {
    ("ResNet", "timm"): _resnet,
    ("NumberedResNet", "timm"): _resnet,
    ("MixNet", "timm"): _mixnet,
    ("LeViT", "timm"): _levit,
    ("XceptionDeepLab", "timm"): _xception,
    ("paddle.MobileNetV3Large", "torchvision"): _torchvision_mobilenet_v3,
    ("paddle.MobileNetV3Small", "torchvision"): _torchvision_mobilenet_v3,
}

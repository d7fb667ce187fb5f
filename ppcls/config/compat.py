"""Names that some of PaddleClas's files have for what has another here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppcls.config.base.fields import Section, Spec
from ppcls.config.objectives.distillation import NamedModel
from ppcls.config.objectives.embedding import RecModel
from ppcls.config.schema import Config
from ppcls.config.sections.infer import Topk
from ppcls.config.sections.model import Arch
from ppcls.config.sections.optimizer import CoupledSpec
from ppcls.registry import ARCHITECTURES


def config_warnings(config: Config) -> list[str]:
    """Returns a line for each key of ``config`` that was given and does nothing."""
    return [f"warning: {line}" for line in (*_lines(config, ""), *_beside_others(config))]


def _beside_others(config: Config) -> Iterator[str]:
    """Yields a line for each key that does nothing beside what else the config says."""
    spec = config.Optimizer
    if isinstance(spec, CoupledSpec) and spec.regularizer is not None and spec.weight_decay is not None:
        yield "Optimizer.weight_decay has no effect; regularizer is the same, and goes before it"
    if config.Global.to_static is True and not isinstance(config.Arch, Arch):
        yield f"Global.to_static has no effect; a {config.Arch.name} is not compiled"
    if isinstance(config.Arch, RecModel) and config.Infer is not None and config.Infer.PostProcess != Topk():
        yield "Infer.PostProcess has no effect; a RecModel gives embeddings"


def _lines(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, NamedModel):
        yield from _lines(value.arch, f"{place}.{value.name}")
    elif isinstance(value, tuple):
        for position, each in enumerate(value):
            name = f".{each.kind}" if isinstance(each, Spec) else ""
            yield from _lines(each, f"{place}[{position}]{name}")
    elif isinstance(value, Section):
        for key in value.ignored_keys:
            yield f"{place}.{key}".lstrip(".") + f" has no effect; {value.ignored[key]}"
        for key, each in value:
            yield from _lines(each, f"{place}.{key}".lstrip("."))


_LEVELS = {True: "O2", False: "O1"}


def translate_old_keys(tree: dict[str, Any]) -> None:
    """Gives sections and keys their present names, in place, before a config is checked.

    ``AMP.use_pure_fp16`` and ``AMP.amp_level`` say what ``AMP.level`` does, the section ``AMP_BF16`` is
    ``AMP`` with ``dtype: bfloat16``, ``PPLCNet`` with a ``scale`` is the architecture of that scale, and
    ``Global.class_num`` is ``Arch.class_num``. What has both names, or another value, is left for the check.

    Args:
        tree: The YAML, which may have any shape.
    """
    half = tree.get("AMP_BF16")
    if "AMP" not in tree and isinstance(half, dict):
        tree["AMP"] = {"dtype": "bfloat16", **tree.pop("AMP_BF16")}
    if isinstance(tree.get("AMP"), dict):
        _name_level(tree["AMP"])
    if isinstance(tree.get("Arch"), dict):
        _name_scale(tree["Arch"])
        if isinstance(tree.get("Global"), dict):
            _name_classes(tree["Global"], tree["Arch"])


def _name_level(amp: dict[str, Any]) -> None:
    if "level" in amp:
        return
    pure = [key for key in ("use_pure_fp16", "use_pure_bf16") if isinstance(amp.get(key), bool)]
    if amp.get("amp_level") in _LEVELS.values():
        # It goes before the other: a file with both says the same twice.
        amp["level"] = amp.pop("amp_level")
    elif pure:
        amp["level"] = _LEVELS[amp[pure[0]]]
    if "level" in amp and len(pure) == 1:
        del amp[pure[0]]


def _name_scale(arch: dict[str, Any]) -> None:
    name = f"PPLCNet_x{arch.get('scale')}".replace(".", "_")
    if (
        arch.get("name") == "PPLCNet"
        and name in ARCHITECTURES
        and arch.get("act", "hardswish") == "hardswish"
    ):
        arch["name"] = name
        del arch["scale"]
        arch.pop("act", None)


def _name_classes(run: dict[str, Any], arch: dict[str, Any]) -> None:
    # A RecModel has its classes in its head.
    if isinstance(run.get("class_num"), int) and arch.get("name") != "RecModel" and "class_num" not in arch:
        arch["class_num"] = run.pop("class_num")

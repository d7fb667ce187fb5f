"""Keys of PaddleClas's files that have no effect, and the keys that have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppcls.config.distillation import Named
from ppcls.config.embedding import RecModel
from ppcls.config.fields import Section, Spec
from ppcls.config.model import Arch
from ppcls.config.optimizer import CoupledSpec
from ppcls.config.postprocess import Topk
from ppcls.config.schema import Config


def warn_of(config: Config) -> list[str]:
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
    if isinstance(value, Named):
        yield from _lines(value.arch, f"{place}.{value.name}")
    elif isinstance(value, tuple):
        for position, each in enumerate(value):
            name = f".{each.kind}" if isinstance(each, Spec) else ""
            yield from _lines(each, f"{place}[{position}]{name}")
    elif isinstance(value, Section):
        for key in value.passed_over:
            yield f"{place}.{key}".lstrip(".") + f" has no effect; {value.without_effect[key]}"
        for key, each in value:
            yield from _lines(each, f"{place}.{key}".lstrip("."))

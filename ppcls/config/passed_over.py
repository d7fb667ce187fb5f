"""Keys of PaddleClas's files that have no effect, there or here, and the keys that have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppcls.config.distillation import Named
from ppcls.config.fields import Section, Spec


def warn_of(config: Section) -> list[str]:
    """Returns a line for each key of ``config`` that was given and does nothing."""
    return [f"warning: {line}" for line in _lines(config, "")]


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

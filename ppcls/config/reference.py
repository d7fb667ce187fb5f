"""Writes docs/config.md from the schema: ``python -m ppcls.config.reference docs/config.md``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ppcls.config.base.fields import Bound, Keyed, Section, Tagged
from ppcls.config.schema import Config
from ppcls.files import write_text
from ppcls.registry import Registry
from ppcls.zoo import ZOO

_MODELS_INTRO = """# Architectures

`make docs` writes this file from `ppcls/zoo.yaml`; `python tools/models.py list PATTERN` prints a selection.

FLOPs are multiply-adds of one image of the input size. Top-1 is the accuracy in percent that PaddleClas
publishes for its weights on ImageNet: plain ones, and in parentheses those of `use_ssld: True` (`ssld`), of
fine-tuning from ImageNet-22k (`22kto1k`) and of diverse branch blocks (`dbb`). Names in lower case and
`LeNet` are models of `paddle.vision.models`.

| `Arch.name` | input | parameters | FLOPs | top-1 |
| --- | --- | --- | --- | --- |"""

_INTRO = """# Config reference

Written from `ppcls/config/` and `ppcls/data/transforms/` by `make docs`; do not edit.

Every key is checked before Paddle is imported; an unknown key is an error. `-o Global.epochs=10` sets a
value from the command line, a number in the path counts list items
(`-o DataLoader.Train.dataset.transform_ops.1.RandCropImage.size=96`), values are read as YAML. Numbers
may be written `1e-3` or `1.0/255.0`, a path may begin with `~/`.
"""


def type_name(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Returns what a field takes, in words."""
    for each in metadata:
        if isinstance(each, Bound):
            return each.describe(annotation).removeprefix("an ").removeprefix("a ")
        if isinstance(each, (Keyed, Tagged)):
            return f"a {each.registry.kind}"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return type_name(annotation.__origin__, annotation.__metadata__)
    if origin is Literal:
        return ", ".join(repr(each) for each in arguments)
    if origin in (Union, UnionType):
        return " or ".join(type_name(each) for each in arguments if each is not type(None))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of: {type_name(arguments[0])}"
        return f"[{', '.join(type_name(each) for each in arguments)}]"
    names = {int: "integer", float: "number", str: "text", bool: "True or False"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, Section):
        return ""
    if isinstance(field.default, tuple):
        return f"`[{', '.join(_plain(each) for each in field.default)}]`"
    return "`null`" if field.default is None else f"`{field.default}`"


def _plain(value: Any) -> str:
    if isinstance(value, Section):
        return getattr(value, "kind", type(value).__name__)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _told_in_docstring(cls: type[Section]) -> dict[str, str]:
    """Returns field names and texts of the ``Attributes:`` of a class and its bases."""
    told: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, attributes = (inspect.getdoc(base) or "").partition("Attributes:\n")
        for match in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
            told[match[1]] = " ".join(match[2].split())
    return told


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    for each in get_args(annotation) or (annotation,):
        if isinstance(each, type) and issubclass(each, Section):
            yield each


def _registries_in(annotation: Any, metadata: tuple[Any, ...]) -> Iterator[Registry]:
    yield from (each.registry for each in metadata if isinstance(each, (Keyed, Tagged)))
    for each in get_args(annotation):
        if hasattr(each, "__metadata__"):
            yield from _registries_in(each.__origin__, each.__metadata__)


def _table(cls: type[Section]) -> Iterator[str]:
    rows = [(name, field) for name, field in cls.model_fields.items()]
    if not rows:
        return
    told = _told_in_docstring(cls)
    yield "| key | takes | default | |"
    yield "| --- | --- | --- | --- |"
    for name, field in rows:
        text = (field.description or told.get(name, "")).replace("|", "\\|")
        takes = type_name(field.annotation, tuple(field.metadata)).replace("|", "\\|")
        yield f"| `{name}` | {takes} | {_default(field)} | {text} |"


def _summary(cls: type[Section]) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _describe(title: str, cls: type[Section], level: int, seen: set[Any]) -> Iterator[str]:
    yield from (f"{'#' * level} {title}", "", _summary(cls), "", *_table(cls), "")
    for name, field in cls.model_fields.items():
        for section in _sections_in(field.annotation):
            if section not in seen and not hasattr(section, "kind"):
                seen.add(section)
                yield from _describe(f"{title}.{name}", section, level + 1, seen)
        for registry in _registries_in(field.annotation, tuple(field.metadata)):
            if registry not in seen:
                seen.add(registry)
                for each in registry:
                    yield from _describe(f"{registry.kind} {each}", registry[each], level + 1, seen)


def render() -> str:
    """Returns the whole reference as Markdown."""
    lines: list[str] = [_INTRO]
    seen: set[Any] = set()
    for name, field in Config.model_fields.items():
        for section in _sections_in(field.annotation):
            if not hasattr(section, "kind"):
                title = name if section.__name__ == name else f"{name}.name: {section.__name__}"
                lines += _describe(title, section, 2, seen)
        for registry in _registries_in(field.annotation, tuple(field.metadata)):
            lines += [f"## {name}", "", f"One {registry.kind}, chosen by its `name`.", ""]
            seen.add(registry)
            for each in registry:
                lines += _describe(each, registry[each], 3, seen)
        if name == "Arch":
            lines += ["[models.md](models.md) lists the architectures.", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def render_models() -> str:
    """Returns the table of all architectures as Markdown."""
    lines = [
        _MODELS_INTRO,
        "| `Arch.name` | input | parameters | FLOPs | top-1 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, entry in ZOO.items():
        top1 = ", ".join(
            f"{top1:.2f}" if kind == "plain" else f"{top1:.2f} ({kind})"
            for kind, top1 in entry.top1.items()
            if top1 is not None
        )
        size = f"{entry.side} x {entry.side}"
        cost = f"{entry.parameters / 1e6:.2f} M | {entry.flops / 1e9:.2f} G"
        lines.append(f"| `{name}` | {size} | {cost} | {top1} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), render())
    write_text(Path(sys.argv[1]).with_name("models.md"), render_models())

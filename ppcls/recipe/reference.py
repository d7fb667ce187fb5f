"""Writes docs/config.md and docs/models.md: ``python -m ppcls.recipe.reference docs/config.md``.

The introductions of both pages are part of the pages. Only the lists that follow them are written.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ppcls.arch.distillation_model import DistilledArch, NamedModel
from ppcls.config.base.choices import Keyed, Tagged
from ppcls.config.base.fields import Bound
from ppcls.config.base.section import Section, Spec
from ppcls.files import write_text
from ppcls.recipe.schema import Config
from ppcls.registry import Registry
from ppcls.zoo import ZOO

_TYPES = {int: "integer", float: "number", str: "text", bool: "True or False", Any: "text or mapping"}


def type_name(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Returns the values that a field accepts as text, such as ``integer > 0``."""
    for item in metadata:
        if isinstance(item, Bound):
            return item.describe(annotation).removeprefix("an ").removeprefix("a ")
        if isinstance(item, (Keyed, Tagged)):
            return f"[{item.registry.kind}](#{_anchor(_title(item.registry.kind))})"
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return type_name(annotation.__origin__, annotation.__metadata__)
    if origin is Literal:
        return ", ".join(repr(argument) for argument in arguments)
    if origin in (Union, UnionType):
        return " or ".join(type_name(argument) for argument in arguments if argument is not type(None))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of: {type_name(arguments[0])}"
        return f"[{', '.join(type_name(argument) for argument in arguments)}]"
    if annotation is NamedModel:
        return _link(_heading(DistilledArch))
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _link(_heading(annotation))
    return _TYPES.get(annotation, str(getattr(annotation, "__name__", annotation)))


def _anchor(title: str) -> str:
    """Returns the anchor that GitHub creates for a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _title(kind: str) -> str:
    """Returns the heading of a registry: ``Losses`` for ``loss``."""
    return kind[0].upper() + kind[1:] + ("es" if kind.endswith("s") else "s")


def _heading(cls: type[Section]) -> str:
    """Returns the heading of a class: ``Loss`` for `LossSection`, and ``All losses`` for the class `Loss`.

    The class of the section ``Loss`` and the base class of losses cannot both be called ``Loss``.
    """
    if "registry" in cls.__dict__:
        title = _title(cls.__dict__["registry"].kind)
        return f"All {title[0].lower()}{title[1:]}"
    return cls.__name__.removesuffix("Section")


def _link(title: str) -> str:
    return f"[{title}](#{_anchor(title)})"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, Section):
        return ""
    if isinstance(field.default, tuple):
        return f"`[{', '.join(_plain(item) for item in field.default)}]`"
    return "`null`" if field.default is None else f"`{field.default}`"


def _plain(value: Any) -> str:
    if isinstance(value, Section):
        return getattr(value, "kind", type(value).__name__)
    return f"{value:g}" if isinstance(value, float) else str(value)


def description(cls: type[Section], name: str) -> str:
    """Returns the description of a key: the string below it in the class, or in the nearest base class."""
    for base in cls.__mro__:
        if issubclass(base, Section) and (text := _attribute_docs(base).get(name)):
            return " ".join(text.split())
    return ""


@cache
def _attribute_docs(cls: type[Section]) -> dict[str, str]:
    """Returns the strings below the fields of a class, by field. pydantic would read them at each import."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }


def _rows(cls: type[Section]) -> dict[str, str]:
    rows = {}
    for name, field in cls.model_fields.items():
        accepted = type_name(field.annotation, tuple(field.metadata))
        cells = [f"`{name}`", accepted, _default(field), description(cls, name)]
        rows[name] = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    return rows


def _table(cls: type[Section], parent: type[Section] | None) -> Iterator[str]:
    """Yields the lines for a section: its summary, and a table of the keys that differ from its parent's."""
    yield from (" ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()), "")
    if parent is not None and parent.model_fields:
        link = _link(_heading(parent)).replace("[All", "[all")
        yield from (f"The keys of {link} are valid here, too.", "")
    known = {} if parent is None else _rows(parent)
    rows = [row for name, row in _rows(cls).items() if known.get(name) != row]
    if rows:
        yield from ("| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows, "")


def _common_bases(registry: Registry) -> list[type[Section]]:
    """Returns the public base classes with keys that several entries of a registry have in common."""
    classes = [registry[name] for name in registry]
    counts = Counter(base for cls in dict.fromkeys(classes) for base in cls.__mro__ if issubclass(base, Spec))
    shared = [base for base, count in counts.items() if count > 1 and base not in classes]
    with_keys = [section for section in shared if set(section.__annotations__) & set(section.model_fields)]
    return sorted(
        (section for section in with_keys if section.__name__[0] != "_"),
        key=lambda section: len(section.__mro__),
    )


def _nested(annotation: Any, metadata: tuple[Any, ...]) -> Iterator[type[Section] | Registry]:
    """Yields the sections and registries in the type of a field."""
    yield from (item.registry for item in metadata if isinstance(item, (Keyed, Tagged)))
    if hasattr(annotation, "__metadata__"):
        yield from _nested(annotation.__origin__, annotation.__metadata__)
    if annotation is NamedModel:
        yield DistilledArch
    if isinstance(annotation, type) and issubclass(annotation, Section) and not issubclass(annotation, Spec):
        yield annotation
    for argument in get_args(annotation):
        yield from _nested(argument, ())


def _collect(chapter: type[Section] | Registry, chapters: dict[type[Section] | Registry, None]) -> None:
    """Adds a section or registry to ``chapters``, then all sections in the types of its keys."""
    if chapter in chapters:
        return
    chapters[chapter] = None
    for cls in [chapter[name] for name in chapter] if isinstance(chapter, Registry) else [chapter]:
        for field in cls.model_fields.values():
            for nested in _nested(field.annotation, tuple(field.metadata)):
                _collect(nested, chapters)


def render() -> str:
    """Returns the whole reference as Markdown."""
    chapters: dict[type[Section] | Registry, None] = {}
    _collect(Config, chapters)
    documented: set[type[Section]] = {chapter for chapter in chapters if not isinstance(chapter, Registry)}
    contents = []
    body = []
    for chapter in chapters:
        if isinstance(chapter, Registry):
            title = _title(chapter.kind)
            level = "###"
            classes: list[type[Section]] = [*_common_bases(chapter), *(chapter[name] for name in chapter)]
            documented.update(classes)
            links = ", ".join(f"[{name}](#{_anchor(chapter[name].__name__)})" for name in chapter)
            body += [f"## {title}", "", f"The choices are {links}.", ""]
        else:
            title = _heading(chapter)
            level = "##"
            classes = [chapter]
        contents.append(f"- {_link(title)}")
        for cls in dict.fromkeys(classes):
            parent = next((base for base in cls.__mro__[1:] if base in documented), None)
            body += [f"{level} {_heading(cls)}", "", *_table(cls, parent)]
    contents.append("- [Architectures](models.md)")
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*contents, "", *body])).rstrip() + "\n"


def render_models() -> str:
    """Returns the table of all architectures as Markdown."""
    lines = [
        "| `Arch.name` | input | parameters | FLOPs | top-1 | weights | images/s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, entry in ZOO.items():
        top1 = ", ".join(
            f"{top1:.2f}" if kind == "plain" else f"{top1:.2f} ({kind})"
            for kind, top1 in entry.top1.items()
            if top1 is not None
        )
        size = f"{entry.side} x {entry.side}"
        cost = f"{entry.parameters / 1e6:.2f} M | {entry.flops / 1e9:.2f} G"
        source = f"{'PyPI' if entry.package else 'PaddleClas'}, {entry.parameters * 4 / 1e6:.0f} MB"
        speed = f"{entry.speed:g}" if entry.speed else ""
        lines.append(f"| `{name}` | {size} | {cost} | {top1} | {source if entry.top1 else ''} | {speed} |")
    return "\n".join(lines) + "\n"


def _update(page: Path, text: str) -> None:
    """Replaces the end of a page, from the first line of ``text`` on."""
    intro = page.read_text(encoding="utf-8").partition(f"\n{text.splitlines()[0]}\n")[0]
    write_text(page, f"{intro}\n{text}")


if __name__ == "__main__":
    _update(Path(sys.argv[1]), render())
    _update(Path(sys.argv[1]).with_name("models.md"), render_models())

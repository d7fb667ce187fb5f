"""Formats config errors: each source of values, followed by the problems of its keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppcls.errors import UserError
from ppcls.files import one_line


class ConfigError(UserError):
    """Error with all problems of a config in one message.

    Args:
        source: Path of the file, or another name of the config.
        problems: One line per problem. Each line starts with the key.
        overrides: Keys that were set outside the file, each with its source for messages, such as ``-o
            Global.epochs=0``.

    Attributes:
        problems: The argument ``problems``.
    """

    has_own_lines = True

    def __init__(
        self, source: Path | str, problems: Sequence[str], overrides: Mapping[str, str] | None = None
    ) -> None:
        sources: dict[str, list[str]] = {}
        for text in problems:
            # A key or a name of a file can come from a stranger.
            place = one_line(_source_of(text, str(source), overrides or {}))
            sources.setdefault(place, []).append(f"  {one_line(text)}")
        super().__init__("\n".join(line for name, lines in sources.items() for line in (name, *lines)))
        self.problems = tuple(problems)


def split_path(path: str) -> list[str]:
    """Splits a path such as ``Loss.Train[0].CELoss`` or ``Loss.Train.0.CELoss`` into its keys."""
    return re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")


def _source_of(line: str, source: str, overrides: Mapping[str, str]) -> str:
    """Returns the source of the value that has a problem: the file, an override, or both."""
    keys = split_path(line.partition(": ")[0])
    parts = []
    for path, name in reversed(list(overrides.items())):
        set_keys = split_path(path)
        if keys[: len(set_keys)] == set_keys:
            return name
        if set_keys[: len(keys)] == keys:
            parts.append(name)
    return " with ".join([source, *reversed(parts)])


def place(tree: Any, loc: Sequence[int | str]) -> str:
    """Returns the path of a location in the YAML, such as ``Infer.transforms[2].CropImage``.

    Args:
        tree: The YAML as nested dicts and lists. It contains the names of list items such as ``- CropImage:
            {size: 224}``, which pydantic's location does not contain.
        loc: Location of an error in pydantic's form.
    """
    text = ""
    node = tree
    in_list = False
    for element in loc:
        if in_list and isinstance(node, dict) and len(node) == 1 and element not in node:
            ((name, node),) = node.items()
            text += f".{name}"
        in_list = isinstance(element, int)
        text += f"[{element}]" if in_list else f".{element}"
        node = _child(node, element)
    if in_list and isinstance(node, dict) and len(node) == 1 and isinstance(name := next(iter(node)), str):
        text += f".{name}"
    return text.lstrip(".")


def _child(node: Any, element: int | str) -> Any:
    if isinstance(node, dict):
        return node.get(element)
    if isinstance(node, list) and isinstance(element, int) and element < len(node):
        return node[element]
    return None


def describe_problems(tree: Any, error: ValidationError) -> list[str]:
    """Returns one line for each validation error: the key and the problem."""
    return [
        ": ".join(filter(None, [place(tree, details["loc"]), details["msg"].removeprefix("Value error, ")]))
        for details in error.errors(include_url=False)
    ]

"""Config errors as a user reads them: the file, then each wrong place with what is wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppcls.errors import UserError


class ConfigError(UserError):
    """Everything that is wrong with a config, as one text."""

    def __init__(self, source: Path | str, problems: Sequence[str]) -> None:
        super().__init__("\n".join([str(source), *(f"  {problem}" for problem in problems)]))
        self.problems = tuple(problems)


def place(tree: Any, loc: Sequence[int | str]) -> str:
    """Returns where ``loc`` is in the YAML, such as ``DataLoader.Train.dataset.transform_ops[2].CropImage``.

    pydantic's location leaves out the name of a one-key mapping in a list (``- CropImage: {size: 224}``);
    the tree that was read shows it.
    """
    text, node, in_list = "", tree, False
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


def describe(tree: Any, error: ValidationError) -> list[str]:
    """Turns what validation found into one line a problem."""
    return [
        ": ".join(filter(None, [place(tree, each["loc"]), each["msg"].removeprefix("Value error, ")]))
        for each in error.errors(include_url=False)
    ]

"""Finds the commands, the options and the settings that the sources of ppcls print as advice.

A command with values is a call of `ppcls.commands.command_line`, and settings with values are a call of
`set_keys`. All other commands, settings (``-o KEY=VALUE``) and options are constant text in messages.
Docstrings are not printed; `documents` reads the examples of ``--help``.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from parsed_commands import NAMES
from paths import ROOT

SOURCES = sorted((ROOT / "ppcls").rglob("*.py"))
_DECLARATIONS = ("option", "argument", "required")  # whose texts `--help` prints
BUILDERS = ("command_line", "set_keys")
_WORD = r"(?:'[^']*'|[^\s'`;,()]|,(?=[^\s'`]))+"  # a word as `shlex.join` writes it


@cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Returns the nodes of all sources, in the order of `ast.walk`, which takes a second."""
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in SOURCES}


@dataclass(frozen=True)
class BuiltCommand:
    """A call that writes a command or settings with values.

    Attributes:
        place: File and source of the call, such as ``ppcls/search/tune.py: set_keys(values)``. Unlike a line
            number, it is the same after changes of other code.
        pattern: Pattern of the text that the call prints.
    """

    place: str
    pattern: str


def built_commands() -> Iterator[BuiltCommand]:
    """Yields all calls that write commands. Equal calls of a file are numbered."""
    places: Counter[str] = Counter()
    for path, inner in nodes().items():
        for node in inner:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILDERS:
                words = _command(node) if node.func.id == "command_line" else _settings(node)
                place = f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
                places[place] += 1
                yield BuiltCommand(place + (f" ({places[place]})" if places[place] > 1 else ""), words)


def _command(call: ast.Call) -> str:
    pattern = "ppcls"
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            pattern += rf"(?: {_WORD})*?"
        elif isinstance(argument, ast.Constant):
            pattern += f" {re.escape(shlex.quote(str(argument.value)))}"
        else:
            pattern += f" {_WORD}"
    return rf"{pattern}(?![^\s'`;,])"


def _settings(call: ast.Call) -> str:
    (values,) = call.args
    keys = [None, *values.keys] if isinstance(values, ast.Dict) else [None]
    named = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    if len(named) == len(keys) - 1 and named:
        return " ".join(["-o", *(rf"'?{re.escape(key)}={_WORD}" for key in named)])
    return rf"-o(?: '?[A-Z]\w*[.\w]*={_WORD})+"


@dataclass(frozen=True)
class Mention:
    """A command, an option or a setting in the constant text of a message.

    Attributes:
        place: File and line.
        text: The text, such as ``ppcls calibrate --unknown``, ``--trust`` or ``-o AMP.level=O1``.
    """

    place: str
    text: str


_NAMED = re.compile(
    rf"\bppcls (?:{'|'.join(NAMES)})\b"
    r"(?: (?:--?[a-z][\w-]*(?:[= ][\w./*'=:-]+)?|[a-z][\w-]*))*"
)
_SETTINGS = re.compile(r"(?<![\w-])-o (?:'?[A-Z]\w*[.\w]*=[^\s;,)`]+ ?)+")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*\w(?:[= ][\w./-]+)?")


def mentions() -> Iterator[Mention]:
    """Yields what messages mention in constant text; of a command, not its options again."""
    for path, inner in nodes().items():
        for line, text in _messages(inner):
            place = f"{path.relative_to(ROOT)}:{line}"
            for pattern in (_NAMED, _SETTINGS, _OPTION):
                yield from (Mention(place, match[0].strip()) for match in pattern.finditer(text))
                text = pattern.sub("", text)


def _messages(inner: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yields line and text of all strings except docstrings, and texts and examples of help."""
    skipped: set[ast.AST] = set()
    for node in inner:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(each for each in ast.walk(node) if each is not node)
        elif _is_help(node):
            skipped.update(ast.walk(node))
    for node in inner:
        if node in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
        elif isinstance(node, ast.JoinedStr):
            parts = (str(each.value) if isinstance(each, ast.Constant) else "\0" for each in node.values)
            yield node.lineno, " ".join("".join(parts).split())


def _is_help(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in (*_DECLARATIONS, "CommandGroup")
    if isinstance(node, ast.AnnAssign | ast.Assign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return isinstance(target, ast.Name) and target.id in ("examples", "_EXAMPLES", "_HELP")
    return False

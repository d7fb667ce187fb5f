"""Hints: what to write in ppcls instead of an option of timm, Ultralytics, PaddleClas or fastai.

`other_tools.yaml` maps the options to words of a command line, such as ``--lr <0.01>``, or to a sentence. A
hint is shown in the form of a command line, or in that of the Python API (`Hint.in_python`).
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ppcls.errors import NotebookInterrupt, SignalExit, UserError
from ppcls.postprocess.guesses import check_arguments

_FILE = Path(__file__).with_name("other_tools.yaml")
_TRANSLATED = re.compile(r"<(?P<table>[a-z_]+):(?P<default>[^<>]*)>")
_VALUE = re.compile(r"<(?P<default>[^<>]*)>")
_ONE_MINUS = "one_minus"  # instead of a table: 1 minus the user's value
_ON = ("true", "yes", "on")
_OFF = ("false", "no", "off", "none")
# An option such as --grad-accum in a sentence, but not in a command in backticks, nor within a word.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])")

_SWITCHES = ("freeze", "increment_output", "resume", "trust")  # options that messages show without a value
# Words of names that mean the same, and words that add nothing, so that variants of a name get its hint.
_SAME_WORDS = {
    "batchsize": "batch-size",
    "learning-rate": "lr",
    "weight-decay": "wd",
    **dict.fromkeys(("validation", "valid", "validate", "evaluation", "evaluate", "eval"), "val"),
    **dict.fromkeys(("directory", "folder"), "dir"),
    "checkpoint": "ckpt",
    "gradient": "grad",
    "clipping": "clip",
    **dict.fromkeys(("augmentation", "augmentations", "augment"), "aug"),
    **dict.fromkeys(("accumulation", "accumulate"), "accum"),
    **dict.fromkeys(("optimizer", "optim"), "opt"),
    **dict.fromkeys(("scheduler", "schedule"), "sched"),
    "iterations": "iter",
    "probability": "prob",
    "logging": "log",
    "saving": "save",
    "stopping": "stop",
}
_EMPTY_WORDS = {
    "use",
    "do",
    "enable",
    "enabled",
    "with",
    "num",
    "n",
    "number",
    "of",
    "the",
    "to",
    "is",
    "torch",
}
_EMPTY_WORDS |= {"trainer", "dataloader", "loader"}
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Hint:
    """What to write instead of an unknown option.

    Attributes:
        words: Words of a command line; empty if nothing replaces the option.
        text: Sentence that explains the words, or says why there are none; may be empty.
    """

    words: tuple[str, ...] = ()
    text: str = ""

    def in_command(self) -> str:
        """Returns the hint for a command line, such as ``use --lr 0.01``."""
        use = f"use {shlex.join(self.words)}" if self.words else ""
        return ": ".join(filter(None, [use, self.text]))

    def in_python(self) -> str:
        """Returns the hint for the Python API, such as ``use lr=0.01``."""
        use = f"use {', '.join(python_arguments(self.words))}" if self.words else ""
        return ": ".join(filter(None, [use, to_python(self.text)]))


def find_hint(command: str, name: str, values: Sequence[str] = ()) -> Hint | None:
    """Returns the hint for an option of another tool; None for an unknown option.

    Args:
        command: Name of the command, such as ``train``.
        name: Name of the option without dashes in front, in lower case, with dashes between its words.
        values: Values that were written after the option.
    """
    table = _read_table(command)
    for value in _spellings(values):
        if f"{name}={value}" in table:
            return _read_hint(table[f"{name}={value}"], values)
    if values and values[0].lower() in _OFF:
        return _read_hint(table[f"no-{name}"], ()) if f"no-{name}" in table else _left_out(table, name)
    if name in table:
        return _read_hint(table[name], () if values and values[0].lower() in _ON else values)
    similar = _similar_name(table, name)
    return None if similar is None else find_hint(command, similar, values)


def _similar_name(table: dict[str, str], name: str) -> str | None:
    """Returns the shortest option with the same words as an unknown one; None without one."""
    words = _words(name)
    similar = [known for known in table if "=" not in known and known != name and _words(known) == words]
    return min(similar, key=lambda known: (len(known), known), default=None) if words else None


def _words(name: str) -> frozenset[str]:
    """Returns the words of a name without order, empty words and plural, in one form."""
    for word in ("learning-rate", "weight-decay", "batchsize"):
        name = name.replace(word, _SAME_WORDS[word])
    forms = (_SAME_WORDS.get(word, word) for word in name.split("-") if word not in _EMPTY_WORDS)
    return frozenset(word[:-1] if word.endswith("s") and len(word) > 3 else word for word in forms)


def find_value_hint(command: str, name: str, value: str) -> Hint | None:
    """Returns the hint for a value that an option of ppcls does not accept; None for an unknown value.

    Args:
        command: Name of the command, such as ``export``.
        name: Name of the option without dashes in front, with dashes between its words.
        value: The value, such as ``tflite``.
    """
    table = _read_table(command)
    keys = [f"{name}={spelling}" for spelling in (*_spellings([value]), "other")]
    if value.lower() in _OFF:
        keys.append(f"no-{name}")
    return next((_read_hint(table[key], [value]) for key in keys if key in table), None)


def _spellings(values: Sequence[str]) -> list[str]:
    """Returns texts that stand for the first value in tables: itself, its first word, and N for a number."""
    if not values:
        return []
    value = values[0].lower()
    return [value, re.split(r"[-_:, ]", value)[0], *(["N"] if _is_number(value) else [])]


def _left_out(table: dict[str, str], name: str) -> Hint | None:
    return Hint(text=f"leave out --{name}") if name in table else None


def _read_hint(template: str, values: Sequence[str]) -> Hint:
    """Returns a hint, with the user's values in the place of the values of the template."""
    tables = _read_tables()["values"]

    def translate(found: re.Match[str]) -> str:
        if found["table"] == _ONE_MINUS:
            share = next((float(value) for value in values if _is_number(value)), None)
            return found["default"] if share is None else f"{1 - share:.6g}"
        table = tables[found["table"]]
        known = next((value for value in _spellings(values) if value in table), "other" if values else "")
        return str(table.get(known, found["default"]))

    def fill(found: re.Match[str]) -> str:
        default = found["default"]
        numbers = [value for value in values if _is_number(value)]
        if " " in default:
            parts = default.split()
            return ",".join(numbers if len(numbers) == len(parts) else parts)
        # The folder of the images can follow the value. Of --input-size 3 64 64, the last value counts.
        fitting = numbers if _is_number(default) else values[:1]
        return fitting[-1] if fitting else default

    template = _TRANSLATED.sub(translate, template)
    written, _, text = template.partition(" | ") if template.startswith("-") else ("", "", template)
    return Hint(tuple(_VALUE.sub(fill, word) for word in shlex.split(written)), text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@functools.cache
def _read_tables() -> dict[str, Any]:
    """Returns the content of the file of hints."""
    from ppcls.zoo import read_table

    return read_table(_FILE)


@functools.cache
def _read_table(command: str) -> dict[str, str]:
    """Returns the hint for each option of other tools, by its name without dashes in front."""
    rows: dict[str, str] = _read_tables().get(command) or {}
    return {name: template for names, template in rows.items() for name in names.split()}


def python_arguments(words: Sequence[str]) -> list[str]:
    """Returns arguments in Python that mean the same as words of a command line.

    ``--lr 0.1 -o Global.epochs=3`` becomes ``lr=0.1`` and ``overrides={'Global.epochs': 3}``.
    """
    from ppcls.config.base.yaml import parse_yaml

    arguments = []
    overrides: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        values = []
        while rest and not re.match(r"--?[a-z]", rest[0]):
            values.append(rest.pop(0))
        if word == "-o":
            pairs = (value.partition("=") for value in values)
            overrides |= {key: parse_yaml(value, "hint") for key, _, value in pairs}
        else:
            value = parse_yaml(values[0], "hint") if values else True
            arguments.append(f"{word.lstrip('-').replace('-', '_')}={value!r}")
    return [*arguments, *([f"overrides={overrides!r}"] if overrides else [])]


def show_in_python(method: Callable[P, T]) -> Callable[P, T]:
    """Returns a method of the Python API whose errors name Python's arguments, not options of commands.

    Errors about unknown arguments say what to use. An interrupt is shown in one line in a notebook.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        guesses = getattr(type(args[0]), "guessed_arguments", {}) if args else {}
        check_arguments(method, guesses, args, kwargs)
        from ppcls.files.urls import naming_addresses  # imports PyYAML, which another Python may lack

        try:
            with naming_addresses():
                return method(*args, **kwargs)
        except (UserError, SignalExit) as error:
            error.args = tuple(to_python(each) if isinstance(each, str) else each for each in error.args)
            raise
        except KeyboardInterrupt as error:
            raise NotebookInterrupt(*error.args) from None

    return call


def to_python(text: str) -> str:
    """Returns a message in which options such as ``--grad-accum`` have the names of Python's arguments.

    Commands are not changed. Of messages that name both, such as ``--trust (in Python: trust=True)``, the
    name in Python remains.
    """
    text = re.sub(r"--[\w-]+ \(in Python: ([^)]*)\)", r"\1", text)
    parts = re.split(r"(`[^`]*`|ppcls [a-z][^;]*)", text)
    return "".join(part if part.startswith(("`", "ppcls ")) else _rename(part) for part in parts)


def _rename(text: str) -> str:
    def rename(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return f"{name}=True" if name in _SWITCHES and text[found.end() :][:1] not in ("=", ":") else name

    text = text.replace("-o Global.checkpoints=auto", "resume=True").replace(" with -o,", ",")
    return _OPTION.sub(rename, text.replace("--on-error skip", "on_error='skip'"))

"""Parses command lines as `ppcls` does, without running them."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ppcls.cli.command import Command, CommandGroup
from ppcls.cli.main import _COMMANDS

NAMES = tuple(_COMMANDS)


def resolve(name: str) -> Command[Any] | CommandGroup | Any:
    """Returns a command, a group of commands, or the function of ``launch``."""
    module, function = _COMMANDS[name][0].split(":")
    return getattr(importlib.import_module(module), function)


def all_commands() -> Iterator[Command[Any]]:
    """Yields all commands except ``launch``, whose options are those of Paddle's launcher."""
    for name in NAMES:
        command = resolve(name)
        for each in command.commands.values() if isinstance(command, CommandGroup) else [command]:
            if isinstance(each, Command):
                yield each


def parse(words: Sequence[str]) -> Any:
    """Returns the options of a command line without ``ppcls``. Exits if it is invalid."""
    command = resolve(words[0])
    rest = list(words[1:])
    if words[0] == "launch":  # passes a command on, behind options of Paddle's launcher
        return parse(list(itertools.dropwhile(lambda word: word not in NAMES, rest)))
    if isinstance(command, CommandGroup):
        command = command.commands[rest.pop(0)]
    return command.parse(rest)

"""Writes commands for messages, so that users can copy and run them.

All messages with a command whose words are not constant use these functions; `.ci/check_source.py` rejects
others. `tests/test_commands.py` finds all calls and checks the commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping


def command_line(command: str, *words: object) -> str:
    """Returns a command, such as ``ppcls infer --model runs/pets IMAGE``, with quotes for a shell.

    Args:
        command: Name of the command.
        words: Its options and arguments. Words in capital letters, such as ``IMAGE``, are for the reader to
            replace.
    """
    return shlex.join(["ppcls", command, *map(str, words)])


def set_keys(values: Mapping[str, object]) -> str:
    """Returns the option that sets keys of the config, such as ``-o Global.epochs=3``.

    Args:
        values: Values in YAML, keyed by paths in the config.
    """
    return shlex.join(["-o", *(f"{key}={value}" for key, value in values.items())])

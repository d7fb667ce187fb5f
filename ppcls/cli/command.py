"""Parts that all commands share: exit codes, error messages, suggestions for unknown options, and output."""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from ppcls.errors import SignalExit, SignalInterrupt, UserError
from ppcls.files import expand_home, print_error
from ppcls.registry import suggest

Arguments = Sequence[str] | None
_INTERRUPTED = 130
_CLOSED_PIPE = 141


def command(function: Callable[[Arguments], None]) -> Callable[[Arguments], int]:
    """Decorates the function of a command, so that it returns an exit code.

    The code is 0 after success, and 128 + N after signal N. If the user can fix an error, only its message is
    printed, to standard error. The code is then that of the `UserError`, or 1 for an error of the operating
    system, such as a full disk.
    """

    @functools.wraps(function)
    def run(arguments: Arguments = None) -> int:
        try:
            function(arguments)
        except UserError as error:
            return _fail(f"error: {error}", error.code)
        except OSError as error:
            if error.errno is None:  # Paddle's own errors have no number
                raise
            place = "" if error.filename is None else f"{error.filename}: "
            return _fail(f"error: {place}{error.strerror}", 1)
        except KeyboardInterrupt as interrupt:
            text = "; ".join(["interrupted", *map(str, interrupt.args)])
            return _fail(text, interrupt.code if isinstance(interrupt, SignalInterrupt) else _INTERRUPTED)
        except SignalExit as stopped:
            return _fail(str(stopped), stopped.code)
        return 0

    return run


class CommandParser(argparse.ArgumentParser):
    """An argument parser that suggests which option to use instead of an unknown one.

    Attributes:
        elsewhere: For each option that only another command has, the name of this command.
        other_tools: For each option of other trainers, the option to use instead.
    """

    elsewhere: Mapping[str, str] = {}
    other_tools: Mapping[str, str] = {}
    _settings: Sequence[str] = ()  # arguments such as ``epochs=3``

    def parse_known_args(  # type: ignore[override]
        self, args: Arguments = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Returns the parsed and the unknown arguments.

        The home folder in ``--option=~/…`` is expanded. If any argument is unknown, a positional argument
        such as ``model=PATH`` is also returned as unknown.
        """
        words = [
            re.sub(r"^(--[\w-]+=)(~/.*)", lambda found: found[1] + expand_home(found[2]), word)
            for word in (sys.argv[1:] if args is None else args)
        ]
        self._settings = [text for text in words if re.match(r"[\w-]+=", text)]
        parsed, unknown = super().parse_known_args(words, namespace)
        values = (getattr(parsed, action.dest, None) for action in self._get_positional_actions())
        first = [text for text in values if text in self._settings] if unknown else []
        return parsed, sorted([*first, *unknown], key=words.index)

    def error(self, message: str) -> NoReturn:
        """Prints the message with suggestions, and exits with code 2."""
        if message == "one of the arguments -c/--config --model is required":
            message = "expected --model PATH, such as --model runs/pets, or -c CONFIG"
            hint = self.suggest_options(self._settings)
        else:
            title, _, unknown = message.partition("unrecognized arguments: ")
            hint = self.suggest_options(unknown.split()) if unknown and not title else ""
        self.exit(2, f"{self.prog}: error: {message}{hint}\n`{self.prog} --help` lists all options\n")

    def suggest_options(self, unknown: Sequence[str]) -> str:
        """Returns the end of an error message, which suggests options to use instead of unknown ones.

        Args:
            unknown: Arguments such as ``--epochs=3``, ``--epochs 3``, or ``epochs=3``.
        """
        hints = []
        remaining = list(unknown)
        while remaining:
            text = remaining.pop(0)
            if re.match(r"-|[\w.-]+=", text):
                name, equals, value = text.partition("=")
                if not equals and remaining and not remaining[0].startswith("-"):
                    value = remaining.pop(0)
                hints.append(self._suggest_option(name, value))
        return "".join(hint for hint in dict.fromkeys(hints))

    def _suggest_option(self, written: str, value: str) -> str:
        name = written.lstrip("-").replace("_", "-")
        if "." in name:
            return f"; to set a key of the config, use -o {written.lstrip('-')}=VALUE"
        if f"--{name}" in self._option_string_actions:
            return f"; use --{name} {value}".rstrip()
        if f"--{name}" in self.elsewhere:
            return f"; --{name} is an option of {self.elsewhere[f'--{name}']}"
        if name in self.other_tools:
            other = self.other_tools[name]
            return f"; use {other} {value}".rstrip() if re.fullmatch(r"--[\w-]+", other) else f"; use {other}"
        return suggest(f"--{name}", list(self._option_string_actions))


def _fail(text: str, code: int) -> int:
    print_error(text)
    return code


def write_output(text: str) -> None:
    """Writes text to standard output; see `exit_on_closed_pipe`."""
    with exit_on_closed_pipe():
        sys.stdout.write(text)


@contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Exits without an error message if the reader of standard output, such as ``head``, closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit succeeds
        raise SystemExit(_CLOSED_PIPE) from None

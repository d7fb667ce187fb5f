"""A parser of options that suggests which option to use instead of an unknown one."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ppcls.cli.options import add_options, describe, read_options

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_OTHER_TOOLS = Path(__file__).with_name("other_tools.yaml")
_REQUIRED_MODEL = "one of the arguments -c/--config --model is required"


class CommandParser(argparse.ArgumentParser):
    """The parser of a command.

    Args:
        command: Name of the command, such as ``train``.
        options: Class that declares the options.
        prog: Name of the program in messages; by default that of the process.
        elsewhere: For each option that only another command has, the name of this command.
    """

    def __init__(
        self,
        command: str,
        options: type[Any],
        prog: str | None = None,
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        epilog = [getattr(options, "epilog", ""), "\n  ".join(("examples:", *options.examples))]
        super().__init__(
            prog=prog,
            description=wrap(describe(options)),
            epilog="\n\n".join(filter(None, epilog)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        declared = read_options(options)
        add_options(self, declared)
        self._command = command
        self._elsewhere = elsewhere or {}
        self._names = ["-h", "--help", *(name for option in declared for name in option.names)]
        self._positional = [option.field for option in declared if option.argument.positional]
        self._settings: Sequence[str] = ()  # arguments such as ``epochs=3``

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Returns the parsed and the unknown arguments.

        The home folder in ``--option=~/…`` is expanded. If any argument is unknown, a positional argument
        such as ``model=PATH`` is also returned as unknown.
        """
        from ppcls.files import expand_home

        words = [
            re.sub(r"^(--[\w-]+=)(~/.*)", lambda found: found[1] + expand_home(found[2]), word)
            for word in (sys.argv[1:] if args is None else args)
        ]
        self._settings = [text for text in words if re.match(r"[\w-]+=", text)]
        parsed, unknown = super().parse_known_args(words, namespace)
        values = [getattr(parsed, name, None) for name in self._positional]
        first = [text for text in values if text in self._settings] if unknown else []
        return parsed, sorted([*first, *unknown], key=words.index)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Writes the help at once. Unlike argparse's method, it does not ignore errors of standard output."""
        output = file or sys.stdout
        output.write(self.format_help())
        sys.stdout.flush()

    def error(self, message: str) -> NoReturn:
        """Prints the message with suggestions, and exits with code 2."""
        if message == _REQUIRED_MODEL:
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
        # Imported here, because only an error needs them, and they read the table of architectures.
        from ppcls.registry import suggest

        name = written.lstrip("-").replace("_", "-")
        if "." in name:
            return f"; to set a key of the config, use -o {written.lstrip('-')}=VALUE"
        if f"--{name}" in self._names:
            return f"; use --{name} {value}".rstrip()
        if f"--{name}" in self._elsewhere:
            return f"; --{name} is an option of {self._elsewhere[f'--{name}']}"
        if other := _read_other_tools(self._command).get(name):
            return f"; use {other} {value}".rstrip() if re.fullmatch(r"--[\w-]+", other) else f"; use {other}"
        return suggest(f"--{name}", self._names)


def wrap(text: str) -> str:
    """Returns a description with wrapped paragraphs. Argparse would join the paragraphs."""
    width = shutil.get_terminal_size().columns - 2
    return "\n\n".join(textwrap.fill(" ".join(part.split()), width) for part in text.split("\n\n"))


def _read_other_tools(command: str) -> dict[str, str]:
    """Returns the option to use instead of each option of other trainers."""
    from ppcls.zoo import read_table

    table = read_table(_OTHER_TOOLS).get(command, {})
    return {name: option for option, names in table.items() for name in names.split()}

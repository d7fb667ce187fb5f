"""Commands: a function with typed options, its exit codes and error messages, and groups of commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from ppcls.cli.options import OptionsError, parsed_options, summarize
from ppcls.cli.parser import CommandParser, wrap
from ppcls.errors import SignalExit, SignalInterrupt, UserError
from ppcls.files import escape_controls, print_error

Arguments = Sequence[str] | None
O = TypeVar("O")  # noqa: E741 - a class of options
_INTERRUPTED = 130
_CLOSED_PIPE = 141
_USAGE = 2


class Command(Generic[O]):
    """A command of ``ppcls``, which is called with the words of a command line and returns an exit code.

    Args:
        name: Name of the command, such as ``train``.
        options: Class that declares its options; see `ppcls.cli.options`.
        function: Function that runs it.
        elsewhere: For each option that only another command has, the name of this command.
    """

    def __init__(
        self,
        name: str,
        options: type[O],
        function: Callable[[O], None],
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.options = options
        self.function = function
        self._elsewhere = elsewhere
        self.__doc__ = function.__doc__

    def __call__(self, words: Arguments = None, prog: str | None = None) -> int:
        """Runs the command, and returns its exit code; see `exit_code`.

        Args:
            words: Words of the command line; by default those of the process.
            prog: Name of the program in messages; by default that of the process.

        Raises:
            SystemExit: The words are invalid (code 2), or are ``--help`` (code 0).
        """
        options = self.parse(words, prog)
        return exit_code(lambda: self.function(options))

    def parse(self, words: Arguments = None, prog: str | None = None) -> O:
        """Returns the options on a command line.

        Raises:
            SystemExit: The words are invalid, or are ``--help``.
        """
        parser = self.parser(prog)
        try:
            return parsed_options(self.options, parser.parse_args(words))
        except OptionsError as error:
            parser.error(f"{error}{parser.suggest_options(error.written)}")

    def parser(self, prog: str | None = None) -> CommandParser:
        """Returns the parser of the options."""
        return CommandParser(self.name, self.options, prog, self._elsewhere)


def command(
    name: str, options: type[O], elsewhere: Mapping[str, str] | None = None
) -> Callable[[Callable[[O], None]], Command[O]]:
    """Returns a decorator that turns a function of options into a `Command`."""
    return lambda function: Command(name, options, function, elsewhere)


class CommandGroup:
    """A command that consists of commands, such as ``ppcls dataset``.

    Args:
        name: Name of the group.
        description: What the commands do.
        examples: Command lines for the help.
        commands: The commands.
        moved: Error messages for commands that no longer exist, by name.
    """

    def __init__(
        self,
        name: str,
        description: str,
        examples: Sequence[str],
        commands: Sequence[Command[Any]],
        moved: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.commands = {each.name: each for each in commands}
        self.examples = examples
        self._description = description
        self._moved = moved or {}

    def __call__(self, words: Arguments = None) -> int:
        """Runs the command that the first word names, and returns its exit code."""
        prog = Path(sys.argv[0]).name
        name, *rest = (sys.argv[1:] if words is None else list(words)) or [""]
        if name in ("-h", "--help"):
            write_output(self.help(prog))
            return 0
        if name in self.commands:
            return self.commands[name](rest, f"{prog} {name}")
        sys.stderr.write(f"{prog}: error: {self._reject(name)}\n")
        return _USAGE

    def help(self, prog: str) -> str:
        """Returns the help of the group."""
        summaries = {name: summarize(each.options) for name, each in self.commands.items()}
        return group_help(prog, self._description, summaries, self.examples)

    def _reject(self, name: str) -> str:
        from ppcls.registry import suggest

        if name in self._moved:
            return self._moved[name]
        known = f"known: {', '.join(self.commands)}"
        if not name or name.startswith("-"):
            return f"expected a command first; {known}"
        return f"unknown command '{name}'{suggest(name, list(self.commands), known)}"


def group_help(prog: str, description: str, summaries: Mapping[str, str], examples: Sequence[str]) -> str:
    """Returns the help of a program that consists of commands.

    Args:
        prog: Name of the program.
        description: What the commands do.
        summaries: One line per command.
        examples: Command lines.
    """
    width = max(map(len, summaries))
    commands = "".join(f"  {name:<{width}} {summary}\n" for name, summary in summaries.items())
    lines = "".join(f"  {example}\n" for example in examples)
    return (
        f"usage: {prog} COMMAND [ARGUMENTS]\n\n{wrap(description)}\n\ncommands:\n{commands}\n"
        f"`{prog} COMMAND --help` lists the options of a command.\n\nexamples:\n{lines}"
    )


def exit_code(run: Callable[[], None]) -> int:
    """Runs a command, and returns its exit code.

    The code is 0 after success, and 128 + N after signal N. If the user can fix an error, only its message is
    printed, to standard error. The code is then that of the `UserError`, or 1 for an error of the operating
    system, such as a full disk.
    """
    try:
        run()
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


def _fail(text: str, code: int) -> int:
    print_error(text)
    return code


def write_output(text: str) -> None:
    """Writes text to standard output; see `exit_on_closed_pipe`."""
    with exit_on_closed_pipe():
        sys.stdout.write(escape_controls(text))


@contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Exits without an error message if the reader of standard output, such as ``head``, closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit succeeds
        raise SystemExit(_CLOSED_PIPE) from None

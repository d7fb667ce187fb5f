"""Commands: a function with typed options, its exit codes and error messages, and groups of commands."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from ppcls.cli.arguments.options import OptionsError, parsed_options, summarize
from ppcls.cli.arguments.parser import CommandParser, wrap
from ppcls.errors import SignalExit, SignalInterrupt, TryAgainError, UserError
from ppcls.files import for_terminal, is_transient, lossy, print_error
from ppcls.runtime.streams import prepare_streams

Arguments = Sequence[str] | None
O = TypeVar("O")  # noqa: E741 - a class of options
_INTERRUPTED = 130
_exit_code: int | None = None  # of the command of this process, after it has ended


class Command(Generic[O]):
    """A command of ``ppcls``, which is called with the words of a command line and returns an exit code.

    Args:
        name: Name of the command, such as ``train``.
        options: Class that declares its options; see `ppcls.cli.arguments.options`.
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
        global _exit_code
        prepare_streams()
        _exit_code = exit_code(lambda: self.function(self.parse(words, prog)))
        return _exit_code

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
        other_names: For names that users of other tools type, the command to use instead.
    """

    def __init__(
        self,
        name: str,
        description: str,
        examples: Sequence[str],
        commands: Sequence[Command[Any]],
        moved: Mapping[str, str] | None = None,
        other_names: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.commands = {each.name: each for each in commands}
        self.examples = examples
        self._description = description
        self._moved = moved or {}
        self._other_names = other_names or {}

    def __call__(self, words: Arguments = None) -> int:
        """Runs the command that the first word names, and returns its exit code."""
        prepare_streams()
        prog = Path(sys.argv[0]).name
        name, *rest = (sys.argv[1:] if words is None else list(words)) or [""]
        if name in ("-h", "--help"):
            return exit_code(lambda: write_output(self.help(prog)))
        if name in self.commands:
            return self.commands[name](rest, f"{prog} {name}")
        print_error(f"{prog}: error: {self._reject(name)}")
        return UserError.code

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
        if name in self._other_names:
            return f"unknown command '{name}'; did you mean '{self._other_names[name]}'?"
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
    printed, to standard error. The code is then that of the `UserError`, 75 for an error of a network drive
    that may go away, and 2 for other errors of the operating system, such as a full disk.
    """
    try:
        run()
        sys.stdout.flush()
    except UserError as error:
        text = f"error: {error}{_advise_locale(str(error))}"
        return _fail(text, error.code, has_own_lines=error.has_own_lines)
    except UnicodeEncodeError as error:
        if not (advice := _advise_locale(error.object)):
            raise
        return _fail(f"error: {error.object!a}{advice}", UserError.code)
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        advice = "use smaller batches or images, or a machine with more memory"
        return _fail(f"error: out of memory{reason}. To fix: {advice}", UserError.code)
    except ImportError as error:
        # A C++ module whose initialization is interrupted raises this error.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        return _fail("interrupted", _INTERRUPTED)
    except OSError as error:
        if error.errno is None:  # Paddle's own errors have no number
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        code = TryAgainError.code if is_transient(error) else UserError.code
        # The error of `tempfile`, for example in a container whose file system is read-only.
        no_folder = "usable temporary directory" in str(error.strerror)
        advice = "; set TMPDIR to a folder that you may write to" if no_folder else ""
        return _fail(f"error: {place}{error.strerror}{advice}", code)
    except KeyboardInterrupt as interrupt:
        text = "; ".join(["interrupted", *map(str, interrupt.args)])
        return _fail(text, interrupt.code if isinstance(interrupt, SignalInterrupt) else _INTERRUPTED)
    except SignalExit as stopped:
        return _fail(str(stopped), stopped.code)
    return 0


def _end_rank() -> None:
    """Ends the process without the destructors of C++ libraries if it is one of several ranks.

    Rank 0 has a thread of Paddle's store, which writes to the log when another rank disconnects. In Paddle
    3.3.1, this aborts the process while destructors run: 2 of about 60 runs of two ranks on a busy machine
    ended with exit code 134, after the command had succeeded. The thread was in glog's ``InitVLOG3__``.
    """
    paddle = sys.modules.get("paddle")
    if _exit_code is None or paddle is None or not paddle.distributed.is_initialized():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # full, or closed
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what C libraries, such as NCCL, have printed
    os._exit(_exit_code)


# Functions run at exit in the reverse order of their registration. All others, such as those of the modules
# that the command imports, are registered later, so they run before this one.
atexit.register(_end_rank)


def _advise_locale(text: str) -> str:
    """Returns advice if the encoding of file names lacks a character of ``text``, else an empty string."""
    encoding = sys.getfilesystemencoding()
    escaped = re.search(r"[^\x00-\x7f]|\\udc[89a-f]", text)  # undecoded bytes, or as an error shows them
    if encoding == "utf-8" or escaped is None:
        return ""
    return (
        f"; this locale encodes names of files as {encoding}, which lacks a character of this name: set the "
        "environment variable LC_ALL=C.UTF-8"
    )


def _fail(text: str, code: int, *, has_own_lines: bool = False) -> int:
    if not has_own_lines:
        # Indented, so that no name in the text, such as that of a weight, can add a line of its own.
        text = re.sub(r"\n(?=\S)", "\n  ", text)
    print_error(text)
    return code


def write_status(line: str) -> None:
    """Writes a line about progress to standard output, or drops it if it can't be written."""
    stream = lossy(sys.stdout)
    stream.write(f"{for_terminal(line)}\n")
    stream.flush()


def write_output(text: str) -> None:
    """Writes text to standard output at once.

    Raises:
        UserError: Standard output is closed, or its disk is full.
        SystemExit: The reader of standard output, such as ``head``, closed the pipe.
    """
    sys.stdout.write(for_terminal(text))
    sys.stdout.flush()

"""How every command runs: its exit code, its error messages and its output."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ppcls.errors import SignalExit, SignalInterrupt, UserError
from ppcls.files import print_error

Arguments = Sequence[str] | None
_INTERRUPTED = 130
_CLOSED_PIPE = 141


def command(function: Callable[[Arguments], None]) -> Callable[[Arguments], int]:
    """Makes a function of the command line's arguments return an exit code.

    The code is 0, or 128 + the number of a signal. An error that the user can fix is one message on
    standard error and code 1: a `UserError`, or an error of the system, such as a write to a full disk.
    """

    @functools.wraps(function)
    def run(arguments: Arguments = None) -> int:
        try:
            function(arguments)
        except UserError as error:
            return _fail(f"error: {error}", error.code)
        except OSError as error:
            if error.errno is None:  # an error of Paddle itself
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


def _fail(text: str, code: int) -> int:
    print_error(text)
    return code


def write_output(text: str) -> None:
    """Writes text to standard output; see `exit_on_closed_pipe`."""
    with exit_on_closed_pipe():
        sys.stdout.write(text)


@contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Ends the command quietly if the reader of standard output, such as ``head``, closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(_CLOSED_PIPE) from None

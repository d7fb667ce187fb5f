"""Exceptions for what users can fix: errors that end a command, bad images, and signals; counts."""

from __future__ import annotations

import os
import re
import signal


def counted(number: int, one: str, several: str | None = None) -> str:
    """Returns a number and its noun for a message, such as ``1 image`` or ``2,000 images``.

    Args:
        number: Number of things.
        one: Noun for one thing, such as ``bad image``, or with a verb, such as ``image is``.
        several: The same for several things, such as ``images are``. By default, the plural of ``one``.
    """
    if number == 1:
        return f"1 {one}"
    if several is None:
        if one.endswith(("s", "x", "tch", "sh")):
            several = f"{one}es"
        else:
            several = f"{one[:-1]}ies" if re.search("[^aeiou]y$", one) else f"{one}s"
    return f"{number:,} {several}"


class UserError(Exception):
    """An error that the user can fix. Commands print its message without a traceback.

    Attributes:
        code: Exit code of a command that ends with this error. It is also that of an invalid command line.
            1 is the code of Python for errors that nobody expected.
        has_own_lines: Whether all lines of the message are written by ppcls, and none by a name in it.
    """

    code = 2
    has_own_lines = False

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class MissedTargetError(UserError):
    """Raised if the last evaluation of a run is worse than ``Global.target``. The exit code is 4."""

    code = 4


class TryAgainError(UserError):
    """Raised if storage, the network or another rank failed. The same command may succeed later."""

    code = os.EX_TEMPFAIL  # 75, which sysexits.h defines for this case


def child_error(code: int, message: str) -> UserError:
    """Returns the error of a command whose child process, a run of ppcls, ended with an exit code."""
    return TryAgainError(message) if code == TryAgainError.code else UserError(message)


class DecodeError(ValueError):
    """An image can't be read or decoded, or the transform chain does not accept it."""


class ImageError(UserError, ValueError):
    """Raised by the Python API for an image that can't be read or decoded."""


class SignalExit(Exception):  # noqa: N818 - not an error: the user asked for it
    """Raised when a signal has stopped a run and the state of the run has been saved."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name}; resume with --resume (Global.checkpoints=auto)")
        self.code = 128 + number

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of a traceback."""
        return [str(self)]


class MissingAttributeError(AttributeError):
    """Raised for a name that the package, or an object of the Python API, does not have."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of a traceback."""
        return [f"AttributeError: {self}"]


class ArgumentError(TypeError):
    """Raised if a method of the Python API is called with arguments that it does not have, or without one."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of a traceback."""
        return [f"TypeError: {self}"]


class NotebookInterrupt(KeyboardInterrupt):
    """Raised by the Python API for an interrupt. A notebook shows it in one line."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of a traceback."""
        return ["; ".join(["interrupted", *map(str, self.args)])]


class SignalInterrupt(KeyboardInterrupt):
    """Raised when a signal other than SIGINT interrupts a command in the same way as Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


MAX_LINE_ERRORS = 10  # number of problems of a file that an error lists


def raise_line_errors(problems: list[str], count: int | None = None) -> None:
    """Raises `UserError` with up to ten problems of a file, one per line. Does nothing without problems.

    Args:
        problems: All problems, or the first ten.
        count: Number of all problems, if ``problems`` has only the first ten.
    """
    if problems:
        count = len(problems) if count is None else count
        more = [f"… and {counted(count - MAX_LINE_ERRORS, 'more line')}"] if count > MAX_LINE_ERRORS else []
        raise UserError("\n".join([*problems[:MAX_LINE_ERRORS], *more]))

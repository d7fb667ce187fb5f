"""Expected ends of a command: an error that the user can fix, or a signal."""

from __future__ import annotations

import signal


class UserError(Exception):
    """An error whose text is all that the user needs. Entry points print it without a traceback.

    Attributes:
        code: Exit code of a command that ends with this error.
    """

    code = 1

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class SignalExit(Exception):  # noqa: N818 - not an error: the user asked for it
    """A signal ended a run after its state was saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; resume with -o Global.checkpoints=auto")
        self.code = 128 + number


class SignalInterrupt(KeyboardInterrupt):
    """A signal other than SIGINT that interrupts a command as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


_MAX_LINES = 10


def raise_line_errors(problems: list[str]) -> None:
    """Raises `UserError` with the first problems of a file, one per line, unless there are none."""
    if problems:
        more = [f"… and {len(problems) - _MAX_LINES} more lines"] if len(problems) > _MAX_LINES else []
        raise UserError("\n".join([*problems[:_MAX_LINES], *more]))

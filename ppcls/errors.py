"""What ends a command on purpose: an error that is meant for the user, or a signal."""

from __future__ import annotations

import signal


class UserError(Exception):
    """An error whose text is all that the user needs: entry points print it without a traceback.

    Attributes:
        code: Which a tool that ends with it returns.
    """

    code = 1


class SignalExit(Exception):  # noqa: N818 - no error: what was asked for
    """A signal has ended a run whose state is saved.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}; go on with -o Global.checkpoints=auto")
        self.code = 128 + number


class SignalInterrupt(KeyboardInterrupt):
    """Another signal than Ctrl-C's where it is to do the same.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


_MOST_LINES = 10


def raise_line_errors(problems: list[str]) -> None:
    """Raises `UserError` with the first problems of a file, one a line, if there are any."""
    if problems:
        more = [f"… and {len(problems) - _MOST_LINES} more lines"] if len(problems) > _MOST_LINES else []
        raise UserError("\n".join([*problems[:_MOST_LINES], *more]))

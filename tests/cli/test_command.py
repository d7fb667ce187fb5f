"""The exit codes and messages that all commands share."""

from __future__ import annotations

import signal

import pytest

from ppcls.cli.command import exit_code
from ppcls.errors import MissedTargetError, SignalExit, SignalInterrupt, TryAgainError, UserError


def run_with(error: BaseException | None) -> int:
    def run() -> None:
        if error is not None:
            raise error

    return exit_code(run)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (None, 0, ""),
        (UserError("wrong"), 2, "error: wrong\n"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device\n"),
        (OSError(2, "No such file", "a.yaml"), 2, "error: a.yaml: No such file\n"),
        (
            FileNotFoundError(2, "No usable temporary directory found"),
            2,
            "error: No usable temporary directory found; set TMPDIR to a folder that you may write to\n",
        ),
        (TryAgainError("no answer"), 75, "error: no answer\n"),
        (OSError(116, "Stale file handle", "a.yaml"), 75, "error: a.yaml: Stale file handle\n"),
        (MissedTargetError("worse"), 4, "error: worse\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt("half is written"), 130, "interrupted; half is written\n"),
        (SignalInterrupt(signal.SIGTERM), 143, "interrupted\n"),
    ],
)
def test_command_turns_an_error_into_a_message_and_a_code(
    error: BaseException | None, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(error) == code
    assert capsys.readouterr().err == message


def test_command_reports_the_signal_that_stopped_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(SignalExit(signal.SIGINT)) == 130
    assert capsys.readouterr().err.startswith("stopped by SIGINT")


def test_interrupted_import_of_a_module_in_cpp_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    assert run_with(error) == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(ImportError, match="missing"):
        run_with(ImportError("missing"))


def test_command_does_not_hide_an_error_of_paddle() -> None:
    with pytest.raises(OSError, match="External"):
        run_with(OSError("(External) an error of Paddle, which has no number"))

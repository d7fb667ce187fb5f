"""Standard input, output and error of a command, which may be closed, full, or unable to encode a name."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from typing import TextIO

from ppcls.errors import UserError

_CLOSED_PIPE = 141  # exit code of a program that SIGPIPE ends, 128 + 13
_STDERR = 2
_OPENCV_LEVEL = "OPENCV_LOG_LEVEL"  # environment variable that OpenCV reads when it is imported
_ESCAPE = "ppcls_escape"  # name of the error handler of codecs
# How a standard stream that the caller closed is opened. Reading input and writing results still fails.
# But no file that the command opens later gets the number of the stream, to which C++ libraries write.
_CLOSED_MODES = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)


class StandardOutput(io.TextIOWrapper):
    """Standard output of a command. A result that can't be written ends the command.

    Raises:
        UserError: Text can't be written, for example because the disk is full.
        SystemExit: The reader, such as ``head``, closed the pipe. The code is 141.
    """

    def write(self, text: str) -> int:
        """Writes text."""
        try:
            return super().write(text)
        except OSError as error:
            raise self._failure(error) from None

    def flush(self) -> None:
        """Writes the text in the buffer."""
        try:
            super().flush()
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> UserError | SystemExit:
        """Discards all later text, so that the flush at the end succeeds, and returns an exception."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        if isinstance(error, BrokenPipeError):
            return SystemExit(_CLOSED_PIPE)
        return UserError(f"standard output: can't be written: {error.strerror}")


class StandardError(io.TextIOWrapper):
    """Standard error of a command. Text that can't be written is dropped."""

    def write(self, text: str) -> int:
        """Writes text."""
        try:
            return super().write(text)
        except OSError:  # there is no place left to report it
            return len(text)

    def flush(self) -> None:
        """Writes the text in the buffer."""
        try:
            super().flush()
        except OSError:
            return


def prepare_streams() -> None:
    """Opens standard streams that are closed, and replaces those of Python.

    Characters that the encoding of a stream lacks are escaped as in JSON, so that lines of JSON stay valid. A
    stream that was replaced before, for example by a test, does not change.

    OpenCV, which is imported later, writes no log to standard error, unless the user has set its level. A
    TIFF of 1 MB can cause 131,072 lines, and ppcls reports each image that cannot be decoded.
    """
    os.environ.setdefault(_OPENCV_LEVEL, "SILENT")
    for number, mode in enumerate(_CLOSED_MODES):
        _open_if_closed(number, mode)
    codecs.register_error(_ESCAPE, _escape)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    if sys.stdout is sys.__stdout__ and not isinstance(sys.stdout, StandardOutput):
        sys.stdout = sys.__stdout__ = _replace(sys.stdout, 1, StandardOutput)  # type: ignore[misc]
    if sys.stderr is sys.__stderr__ and not isinstance(sys.stderr, StandardError):
        sys.stderr = sys.__stderr__ = _replace(sys.stderr, 2, StandardError)  # type: ignore[misc]


def separate_error_stream() -> int:
    """Makes `sys.stderr` of a command write to a copy of its descriptor, and returns the copy.

    The descriptor 2, to which C++ code writes, can then be filtered without Python's output.
    """
    sys.stderr.flush()
    copy = os.dup(_STDERR)
    buffer = io.BufferedWriter(io.FileIO(copy, "wb", closefd=False))
    stream = StandardError(buffer, sys.stderr.encoding, _ESCAPE, line_buffering=True)
    sys.stderr = sys.__stderr__ = stream  # type: ignore[misc]
    return copy


def _open_if_closed(number: int, mode: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, mode)
        os.dup2(null, number)  # also makes child processes inherit it
        if null != number:
            os.close(null)


def _replace(
    stream: TextIO | None, number: int, kind: type[StandardOutput | StandardError]
) -> StandardOutput | StandardError:
    if not isinstance(stream, io.TextIOWrapper):  # None, because it was closed when Python started
        return kind(io.BufferedWriter(io.FileIO(number, "wb", closefd=False)), "utf-8", _ESCAPE)
    encoding = stream.encoding
    line_buffering = stream.line_buffering
    write_through = stream.write_through
    return kind(
        stream.detach(),
        encoding,
        _ESCAPE,
        line_buffering=line_buffering,
        write_through=write_through,
    )


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Returns characters as JSON escapes them, and the position after them."""
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return json.dumps(characters)[1:-1], error.end

"""Filters what C++ code writes to standard error.

Training drops the lines of image decoders, such as DALI's ``[jpeg_parser] …``. A server with a log in JSON
makes each line a JSON object.

ppcls names each image that cannot be decoded, with a reason. The lines of the decoders would repeat this
without the name of the file. `prepare_streams` switches off those of OpenCV. The other libraries have no
setting for this.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys

from ppcls.runtime.streams import StandardError, separate_error_stream

# DALI's nvImageCodec, libjpeg, libpng, and OpenCV's readers
_DROPPED = (
    r"\[\w+_(parser|decoder)\]|nvImageCodec|nvimgcodec|Corrupt JPEG data|Premature end of JPEG file"
    r"|libpng (error|warning)|global grfmt_\w+\.cpp"
)
# The program of the filter. It is a process, because a thread would lose the last lines before a crash.
_PROGRAM = """
import re, sys
dropped = re.compile(sys.argv[1].encode())
for line in sys.stdin.buffer:
    if not dropped.search(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
# Drops whole lines while too much text waits for a reader, because waiting would make the server wait, too. A
# line that has started is completed when the reader continues. A write of at most 4,096 bytes to a pipe that
# is writable neither waits nor mixes with the text of other processes.
_JSON_PROGRAM = """
import datetime, json, os, select, sys
LIMIT = 1 << 20
def to_record(line):
    text = line.decode(errors="backslashreplace").strip()
    if not text or text.startswith('{"time": '):
        return line if text else b""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    record = {"time": now, "level": "warning", "message": text[:2000], "request_id": None}
    return json.dumps(record).encode() + b"\\n"
started, waiting, reading = b"", b"", True
while reading or waiting:
    readable, writable, _ = select.select([0][:reading], [1][:bool(waiting)], [], None if reading else 1)
    if readable:
        part = os.read(0, 65536)
        reading = bool(part)
        *lines, started = (started + (part or b"\\n" * bool(started))).split(b"\\n")
        for line in lines:
            record = to_record(line + b"\\n")
            waiting += record if len(waiting) + len(record) <= LIMIT else b""
        if len(started) > LIMIT:
            started = started[:4096]
    if writable:
        end = waiting.index(b"\\n") + 1
        waiting = waiting[os.write(1, waiting[:min(end, 4096)]) :]
    elif not reading and not readable:
        break
"""
_WAIT = 1.0  # seconds for the last lines, at the end of the process
_STDERR = 2
_started = False


def filter_decoder_messages() -> None:
    """Filters what C++ code of this process writes to standard error from now on.

    Python's own `sys.stderr` is not filtered. Does nothing in a process that is not a command of ppcls, such
    as a notebook, whose standard error belongs to the user's program.
    """
    _start_filter(_PROGRAM, _DROPPED)


def wrap_native_lines() -> None:
    """Makes each line that C++ code writes to standard error from now on a JSON object.

    The lines of child processes are included. Lines that are JSON objects already do not change.
    """
    _start_filter(_JSON_PROGRAM)


def _start_filter(program: str, *arguments: str) -> None:
    global _started
    if _started or not isinstance(sys.stderr, StandardError):
        return
    _started = True
    original = separate_error_stream()
    reader, writer = os.pipe()
    everything = signal.valid_signals()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, everything)  # it ends when all writers have ended
    try:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-S", "-c", program, *arguments],
            stdin=reader,
            stdout=original,
            stderr=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    os.close(reader)
    os.dup2(writer, _STDERR)
    os.close(writer)
    atexit.register(_finish, process, original)


def _finish(process: subprocess.Popen[bytes], original: int) -> None:
    """Restores standard error, and waits until the filter has written its last lines."""
    os.dup2(original, _STDERR)
    try:
        process.wait(_WAIT)
    except subprocess.TimeoutExpired:  # a child process still has the pipe
        return

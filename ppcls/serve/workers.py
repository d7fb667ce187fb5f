"""Worker processes that serve on the same port, and the parent process that starts and restarts them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ppcls.errors import UserError
from ppcls.files.temporary import temporary_folder

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # folder in which prometheus_client stores metrics per process
_LOG = logging.getLogger("ppcls.serve.workers")
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EXTRA_SECONDS = 10.0  # additional seconds within which a worker must end after its last requests
_RETRY_SECONDS = 10.0  # seconds between two attempts to restart a worker

Serve = Callable[..., int]


@dataclass(frozen=True)
class _Worker:
    number: int
    process: BaseProcess
    channel: Connection


class WorkerProcesses:
    """Processes that serve the same models. Each process uses its share of the CPU cores.

    Args:
        serve: Module-level function that serves until SIGTERM, and returns an exit code. It calls its last
            argument, a function, when it accepts requests.
        arguments: Arguments of ``serve`` before the last one.
        count: Number of processes.
        grace: Seconds to answer the current requests after a stop signal.
    """

    def __init__(self, serve: Serve, arguments: Sequence[Any], count: int, grace: float) -> None:
        self._serve = serve
        self._arguments = arguments
        self._count = count
        self._grace = grace
        self._workers: list[_Worker] = []
        self._codes: list[int | None] = []

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serves until SIGTERM or Ctrl-C, and restarts processes that end earlier.

        Args:
            on_ready: Function to call when all processes accept requests.

        Raises:
            UserError: A process ended before it accepted requests, or ended with an error after the signal.
                If a restarted process fails, this is raised only if no other process remains.
        """
        with temporary_folder("metrics") as folder, _stop_signal() as stop:
            metrics = str(folder)
            try:
                # The first process starts alone, so that an error of the model is printed only once.
                for numbers in ([0], range(1, self._count)):
                    started = [self._start(number, metrics) for number in numbers]
                    if not all(self._becomes_ready(worker, stop) for worker in started):
                        return
                on_ready()
                missing: list[int] = []
                while stop not in (
                    ended := wait([stop, *self._sentinels()], _RETRY_SECONDS if missing else None)
                ):
                    for worker in [item for item in self._workers if item.process.sentinel in ended]:
                        self._remove(worker, metrics)
                        missing.append(worker.number)
                    missing = [number for number in missing if not self._restart(number, metrics, stop)]
            finally:
                self._stop_all()
        # A process that does not serve yet is ended by SIGTERM.
        if not set(self._codes) <= {0, -signal.SIGTERM}:
            raise UserError("a worker did not end correctly; see its messages above")

    def _start(self, number: int, metrics: str) -> _Worker:
        # Not `fork`: a forked process cannot use CUDA after its parent, and inherits locks that threads of
        # the parent hold.
        context = multiprocessing.get_context("spawn")
        channel, other_end = context.Pipe()
        cores = sorted(os.sched_getaffinity(0))
        share = cores[number :: self._count] or [cores[number % len(cores)]]
        arguments = (self._serve, self._arguments, share, metrics, other_end)
        process = context.Process(target=_run_worker, args=arguments, name=f"worker {number}")
        process.start()
        other_end.close()
        worker = _Worker(number, process, channel)
        self._workers.append(worker)
        return worker

    def _sentinels(self) -> list[int]:
        return [worker.process.sentinel for worker in self._workers]

    def _becomes_ready(self, worker: _Worker, stop: int) -> bool:
        """Waits until a process accepts requests, and returns True; returns False after a stop signal."""
        ready = wait([stop, worker.channel])
        if stop in ready:
            return False
        try:
            worker.channel.recv()
        except EOFError:
            worker.process.join()
            raise UserError(
                f"a worker ended with exit code {worker.process.exitcode} before it accepted requests; "
                "see its messages above"
            ) from None
        return True

    def _remove(self, worker: _Worker, metrics: str) -> None:
        """Removes a process that has ended, and logs its exit code."""
        worker.process.join()
        code = worker.process.exitcode
        pid = worker.process.pid
        _LOG.warning("worker process %s ended with exit code %s; restarting it", pid, code)
        worker.channel.close()
        self._workers.remove(worker)
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid, metrics)  # type: ignore[no-untyped-call]

    def _restart(self, number: int, metrics: str, stop: int) -> bool:
        """Starts a new process for one that has ended, and returns whether it accepts requests."""
        worker = self._start(number, metrics)
        try:
            return self._becomes_ready(worker, stop)
        except UserError as error:
            self._workers.remove(worker)
            if not self._workers:
                raise
            _LOG.warning(
                "%s. %s of %s workers serve; trying again in %g s",
                error,
                len(self._workers),
                self._count,
                _RETRY_SECONDS,
            )
            return False

    def _stop_all(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        end = time.monotonic() + self._grace + _EXTRA_SECONDS
        for worker in self._workers:
            worker.process.join(max(end - time.monotonic(), 0))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            self._codes.append(worker.process.exitcode)


@contextmanager
def _stop_signal() -> Iterator[int]:
    """Yields a file descriptor that becomes readable after SIGTERM or Ctrl-C."""
    reader, writer = os.pipe()
    handlers = {
        number: signal.signal(number, lambda *_: os.write(writer, b".") and None) for number in _STOP_SIGNALS
    }
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _run_worker(
    serve: Serve, arguments: Sequence[Any], cores: Sequence[int], metrics: str, channel: Connection
) -> None:
    os.setsid()  # Ctrl-C in a terminal reaches only the parent process, which then ends this process
    os.sched_setaffinity(0, cores)
    os.environ[METRICS_FOLDER] = metrics
    threading.Thread(target=_end_with_parent, args=[channel], daemon=True).start()
    sys.exit(serve(*arguments, lambda: channel.send("ready")))


def _end_with_parent(channel: Connection) -> None:
    try:
        channel.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)

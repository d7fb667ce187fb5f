"""Imports Paddle once per process, with the settings that Paddle reads at its import."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.runtime.hardware import Card, idle_cores
from ppcls.runtime.memory import MemoryBudget, MemoryRequest
from ppcls.runtime.settings import RuntimeSettings
from ppcls.runtime.signals import deferred_interrupt

_SEARCH = "FLAGS_cudnn_exhaustive_search"
_SIGACTION_BYTES = 512  # more than the size of C's struct sigaction on any system
# Flags to set after the import if the environment does not set them. `stop_cudnn_search` removes one.
SPEED_FLAGS = {
    _SEARCH: True,  # measures cuDNN's algorithms once for each convolution
    # cuDNN's faster BatchNorm: 5,117 to 6,673 images/s (docs/measurements/training.md). If a float16 run
    # overflows again and again, the message of `NonFiniteMonitor` advises to switch it off.
    "FLAGS_cudnn_batchnorm_spatial_persistent": True,
}
# Variables that Paddle reads at its import. They make Paddle, cuDNN and cuBLAS produce the same bits in every
# run.
DETERMINISTIC = {
    "FLAGS_cudnn_deterministic": "1",
    "FLAGS_embedding_deterministic": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


@dataclass(frozen=True)
class PaddleImport:
    """The settings with which Paddle was imported in this process.

    Attributes:
        threads: Number of CPU threads.
        deterministic: Whether Paddle, cuDNN, cuBLAS and MKL produce the same bits in every run.
        by_run: Whether a run imported Paddle; False if it was imported before the first run.
        request: Requested division of the GPU's memory; None if there is no limit.
        card: GPU whose memory is divided; None if there is no limit.
        budget: Division of the GPU's memory; None if there is no limit.
    """

    threads: int
    deterministic: bool
    by_run: bool = False
    request: MemoryRequest | None = None
    card: Card | None = None
    budget: MemoryBudget | None = None

    def check_settings(self, settings: RuntimeSettings, request: MemoryRequest | None) -> None:
        """Checks that a later run needs no other values of settings that Paddle reads only at its import.

        Args:
            settings: Settings of the later run.
            request: Division of the GPU memory that the later run requests; None if it accepts any.

        Raises:
            UserError: The run needs another number of threads, determinism, or another share of GPU memory.
        """
        if settings.cpu_threads not in (None, self.threads):
            raise self._too_late(f"Global.cpu_threads {settings.cpu_threads}", f"uses {self.threads}")
        if settings.deterministic and not self.deterministic:
            raise self._too_late("Global.deterministic True", "is not deterministic")
        if request is None or request.fraction is None:
            return
        current = self.request.fraction if self.request is not None else None
        if request.fraction != current:
            share = "no limit" if current is None else f"{current:g}"
            raise self._too_late(f"{request.setting} {request.fraction:g}", f"has {share}")

    def describe(self, cores: int) -> str:
        """Returns a note if Paddle was imported too early to use all cores, else an empty string."""
        early = not self.by_run and self.threads < cores
        return " (Paddle was imported before ppcls could set more)" if early else ""

    def _too_late(self, setting: str, state: str) -> UserError:
        when = "the first run imported it" if self.by_run else "its import, which came before the first run"
        fix = "" if self.by_run else ", without `import paddle` before the first run"
        return UserError(
            f"{setting}: Paddle {state}, which can't be changed after {when}; start a new process (in a "
            f"notebook: restart the kernel){fix}, or do not change the setting"
        )


def import_with(
    settings: RuntimeSettings,
    request: MemoryRequest,
    card: Card | None,
    budget: MemoryBudget | None,
    cores: int,
) -> PaddleImport:
    """Imports Paddle with the settings of a run.

    Args:
        settings: Device, threads, memory and timeouts.
        request: Requested division of the GPU memory.
        card: GPU whose memory is divided; None if there is no limit.
        budget: Division of the GPU memory; None if there is no limit.
        cores: Number of CPU cores for Paddle's threads.
    """
    threads = set_threads(settings.cpu_threads, cores, launched="PADDLE_TRAINERS_NUM" in os.environ)
    if settings.deterministic:
        os.environ |= {"MKL_CBWR": "AUTO"} | DETERMINISTIC | _current("MKL_CBWR")
    flags = budget.flags() if budget is not None else {}
    users = _current(*flags)
    os.environ |= flags
    os.environ.setdefault("GLOG_minloglevel", "1")  # hides Paddle's info lines
    try:
        import_paddle()
    finally:
        for name in flags:  # removed, because child processes would treat them as settings of the user
            del os.environ[name]
        os.environ |= users
    return PaddleImport(
        threads, settings.deterministic, True, request if budget is not None else None, card, budget
    )


def describe_early_import() -> PaddleImport:
    """Returns the settings of a Paddle that was imported before the first run and set OMP_NUM_THREADS."""
    return PaddleImport(omp_threads() or 1, deterministic=DETERMINISTIC.items() <= os.environ.items())


def import_paddle() -> None:
    """Imports Paddle, hides its warning about threads, and restores the SIGTERM handler that it replaces.

    Raises:
        ModuleNotFoundError: Paddle, or a package that it needs, is not installed.
        UserError: Paddle is installed, but its import fails.
    """
    if sys.stderr.isatty():
        sys.stderr.write("loading Paddle ...\n")
    stderr = io.StringIO()
    try:
        with (
            deferred_interrupt(),
            _kept_handler(signal.SIGTERM),
            contextlib.redirect_stderr(stderr),
            _without_collections(),
        ):
            import paddle  # noqa: F401
    except ModuleNotFoundError:
        raise
    except ImportError as error:
        fix = advise_library(str(error)) or "`ppcls doctor` prints what to install"
        raise UserError(f"Paddle cannot be imported: {error}; {fix}") from error
    for line in stderr.getvalue().splitlines():
        if "OMP_NUM_THREADS" not in line:
            print_error(line)


@contextlib.contextmanager
def _kept_handler(number: int) -> Iterator[None]:
    """Restores the handler of a signal, which Paddle replaces in C++ when it is imported.

    Python's `signal.signal` works only in the main thread. A server that loads its first Paddle model while
    it runs imports Paddle in another thread.
    """
    library = ctypes.CDLL(None)
    handler = ctypes.create_string_buffer(_SIGACTION_BYTES)
    library.sigaction(number, None, handler)
    try:
        yield
    finally:
        library.sigaction(number, handler, None)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Exempts what the block imports from garbage collection, also at the end of the process.

    Paddle's objects exist until the process ends. Visiting them would take a third of a second at its end.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.freeze)
        if enabled:
            gc.enable()


def advise_library(error: str) -> str:
    """Returns advice on installing a missing system library; empty for other errors.

    Args:
        error: Message of the `ImportError`.
    """
    missing = re.search(r"(\S+\.so\S*): cannot open shared object file", error)
    if missing is None:
        return ""
    if missing[1].startswith("libgomp.so"):
        return "apt-get install libgomp1 (Debian, Ubuntu), or dnf install libgomp (Fedora, RHEL)"
    return f"install the system package that contains {missing[1]}"


def _current(*names: str) -> dict[str, str]:
    """Returns the values of the given environment variables, without variables that are not set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def set_threads(requested: int | None, cores: int, launched: bool) -> int:
    """Sets OMP_NUM_THREADS, which Paddle reads at its import, and returns its value.

    If the user set OMP_NUM_THREADS and ``requested`` is None, the value stays unchanged. With a launcher, the
    value 1 is treated as not set by the user: the launcher imports Paddle, which sets 1 by default, and the
    processes inherit it.

    Args:
        requested: ``Global.cpu_threads``.
        cores: Number of CPU cores of this process.
        launched: Whether the launcher started this process.
    """
    current = omp_threads()
    if requested is None and current is not None and not (launched and current == 1):
        return current
    threads = requested or cores
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads


def choose_threads(requested: int | None) -> int | None:
    """Returns the number of threads for a short run: the number of cores that other programs leave idle.

    If other programs use the cores, threads wait for each other: with two threads instead of one on two cores
    at a load of 9, features of 64 x 64 pixels took twice as long.

    Args:
        requested: ``Global.cpu_threads``, which is returned if it is set. None is returned if OMP_NUM_THREADS
            is set.
    """
    if requested is not None or omp_threads() is not None:
        return requested
    return idle_cores()


def omp_threads() -> int | None:
    """Returns the value of OMP_NUM_THREADS; None if it is not set or invalid."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def check_deterministic() -> None:
    """Checks that the environment does not enable cuDNN's search, which would make results differ.

    Raises:
        UserError: The environment enables the search.
    """
    if os.environ.get(_SEARCH, "0").lower() not in ("0", "false", ""):
        raise UserError(
            f"environment variable {_SEARCH}: chooses algorithms by their measured time, so results differ "
            "between runs, but Global.deterministic is True; unset the variable, or set "
            "Global.deterministic=False"
        )


def set_speed_flags(deterministic: bool) -> None:
    """Sets flags that make Paddle faster if the environment does not set them; see docs/performance.md.

    Args:
        deterministic: Whether results must not depend on measured times.
    """
    import paddle

    flags = {name: value for name, value in SPEED_FLAGS.items() if name not in os.environ}
    if deterministic:
        flags.pop(_SEARCH, None)
    paddle.set_flags(flags)


@contextlib.contextmanager
def pause_cudnn_search() -> Iterator[None]:
    """Returns a context without cuDNN's search. A flag that the user's environment sets is not changed."""
    import paddle

    if _SEARCH in os.environ or not paddle.get_flags(_SEARCH)[_SEARCH]:
        yield
        return
    paddle.set_flags({_SEARCH: False})
    try:
        yield
    finally:
        paddle.set_flags({_SEARCH: True})


def stop_cudnn_search() -> bool:
    """Disables cuDNN's search for the rest of the process if the environment does not set its flag.

    Later runs in the process do not search either, because the search could disturb work that still runs.

    Returns:
        Whether the search is disabled.
    """
    import paddle

    if _SEARCH in os.environ:
        return not paddle.get_flags(_SEARCH)[_SEARCH]
    SPEED_FLAGS.pop(_SEARCH, None)
    paddle.set_flags({_SEARCH: False})
    return True

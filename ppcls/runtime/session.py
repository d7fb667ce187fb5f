"""Starts a run in a process that executes only this run, or in a process such as a notebook."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ppcls.runtime.failures import FailureReports
from ppcls.runtime.launch import read_launch
from ppcls.runtime.paddle_import import SPEED_FLAGS
from ppcls.runtime.settings import RuntimeSettings
from ppcls.runtime.start import Runtime, start
from ppcls.runtime.watchdog import watch_for_hangs


@contextmanager
def dedicated(settings: RuntimeSettings, output_dir: Path, logged: bool = True) -> Iterator[Runtime]:
    """Starts a run in a process that executes only this run. The process ends if the run is stuck.

    Args:
        settings: Device, threads, memory and timeouts.
        output_dir: Output folder of the run, for reports of failures. It is created for the first report.
        logged: Whether a report on a stuck process is also written to ``train.log``.

    Yields:
        The runtime of the run.

    Raises:
        UserError: See `ppcls.runtime.start.start`; or another rank failed first.
    """
    failures = FailureReports(output_dir, read_launch())
    log = output_dir / "train.log" if logged else None
    with failures.reporting(), watch_for_hangs(settings.hang_timeout, failures, log) as progress:
        yield start(settings, progress)


@contextmanager
def embedded(settings: RuntimeSettings, output_dir: Path | None = None) -> Iterator[Runtime]:
    """Starts a run in a process that continues after the run, and then restores the state of the process.

    Some changes are not restored: the settings that Paddle reads at its import (see
    `ppcls.runtime.paddle_import`), the single thread of OpenCV, and the unlimited image size of Pillow.

    Args:
        settings: Device, threads, memory and timeouts.
        output_dir: Folder for failure reports; None for no reports.

    Yields:
        The runtime of the run.

    Raises:
        UserError: See `dedicated`.
    """
    launch = read_launch()  # a process of a launch with several processes executes only this run
    paddle = _restored_paddle() if "paddle" in sys.modules else nullcontext()
    failures = FailureReports(output_dir, launch).reporting() if output_dir is not None else nullcontext()
    with warnings.catch_warnings(), paddle, failures:
        yield start(settings, embedded=launch.world_size == 1)


@contextmanager
def _restored_paddle() -> Iterator[None]:
    """Restores Paddle's device, flags and random state after the block."""
    import paddle

    device = paddle.device.get_device()
    random_state = paddle.get_rng_state()
    flags = paddle.get_flags(list(SPEED_FLAGS)) if paddle.is_compiled_with_cuda() else {}
    try:
        yield
    finally:
        paddle.set_device(device)
        paddle.set_flags(flags)
        paddle.set_rng_state(random_state)

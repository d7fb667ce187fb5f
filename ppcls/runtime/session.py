"""A run in a process of its own, or embedded in a process that outlives it, such as a notebook."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ppcls.config.sections.run import Global
from ppcls.runtime.failures import FailureReports
from ppcls.runtime.launch import read_launch
from ppcls.runtime.paddle_import import SPEED_FLAGS
from ppcls.runtime.start import Runtime, start
from ppcls.runtime.watchdog import watch_for_hangs


@contextmanager
def dedicated(settings: Global, output_dir: Path, logged: bool = True) -> Iterator[Runtime]:
    """Starts a run in a process that exists for it alone: the process ends if the run is stuck.

    Args:
        output_dir: Output folder of the run, where failures are reported; created when one is.
        logged: Whether a report on a stuck process is written to ``train.log``, too.

    Raises:
        UserError: As `ppcls.runtime.start.start`; or another rank failed first.
    """
    failures = FailureReports(output_dir, read_launch())
    log = output_dir / "train.log" if logged else None
    with failures.reporting(), watch_for_hangs(settings.hang_timeout, failures, log) as progress:
        yield start(settings, progress)


@contextmanager
def embedded(settings: Global, output_dir: Path | None = None) -> Iterator[Runtime]:
    """Starts a run in a process that outlives it, and restores what the run changed in the process.

    What Paddle read when it was imported stays (`ppcls.runtime.paddle_import`), and so do OpenCV's single
    thread and Pillow's unlimited image size, which ppcls needs wherever it reads images.

    Args:
        output_dir: Folder for failure reports; None for no reports.

    Raises:
        UserError: As `dedicated`.
    """
    launch = read_launch()  # launched as one of several processes, this one exists for the run
    paddle = _restored_paddle() if "paddle" in sys.modules else nullcontext()
    failures = FailureReports(output_dir, launch).reporting() if output_dir is not None else nullcontext()
    with warnings.catch_warnings(), paddle, failures:
        yield start(settings, embedded=launch.world_size == 1)


@contextmanager
def _restored_paddle() -> Iterator[None]:
    """Restores Paddle's device, flags and random state after the block."""
    import paddle

    device, random_state = paddle.device.get_device(), paddle.get_rng_state()
    flags = paddle.get_flags(list(SPEED_FLAGS)) if paddle.is_compiled_with_cuda() else {}
    try:
        yield
    finally:
        paddle.set_device(device)
        paddle.set_flags(flags)
        paddle.set_rng_state(random_state)

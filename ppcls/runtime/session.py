"""A run and the process that it is in: started, watched where it is the run's own, and left as it was."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ppcls.config.schema import Config
from ppcls.runtime import start as runtime
from ppcls.runtime.failures import Failures
from ppcls.runtime.start import Runtime
from ppcls.runtime.watchdog import guarded


@contextmanager
def in_own_process(config: Config, output_dir: Path, logged: bool = True) -> Iterator[Runtime]:
    """Starts a run in a process that is there for it alone: where it is stuck, the process ends.

    Args:
        config: The run's.
        output_dir: Its folder, which is written where a process fails; it need not be there.
        logged: Whether its log, ``train.log``, has what a stuck process said, too.

    Raises:
        UserError: As `ppcls.runtime.start.start`; or in place of an error that another rank's failure caused.
    """
    failures = Failures(output_dir, runtime.read_launch())
    log = output_dir / "train.log" if logged else None
    with failures.shown(), guarded(config.Global.hang_timeout, failures, log) as progress:
        yield runtime.start(config.Global, progress)


@contextmanager
def in_lent_process(config: Config, output_dir: Path | None = None) -> Iterator[Runtime]:
    """Starts a run in somebody else's process, such as a notebook's, and leaves that as it was.

    What Paddle reads at its import stays (`ppcls.runtime.imported`), and so do OpenCV's single thread and
    Pillow's unlimited size, which ppcls needs wherever it reads images.

    Args:
        config: The run's.
        output_dir: Where the last words of a failed rank go; None for nowhere.

    Raises:
        UserError: As `in_own_process`.
    """
    launch = runtime.read_launch()  # of several processes each is there for the run
    paddle = _paddle_kept() if "paddle" in sys.modules else nullcontext()
    failures = Failures(output_dir, launch).shown() if output_dir is not None else nullcontext()
    with warnings.catch_warnings(), paddle, failures:
        yield runtime.start(config.Global, lent=launch.world == 1)


@contextmanager
def _paddle_kept() -> Iterator[None]:
    """Puts Paddle's device, flags and random numbers back."""
    import paddle

    device, numbers = paddle.device.get_device(), paddle.get_rng_state()
    flags = paddle.get_flags(list(runtime.SPEED_FLAGS)) if paddle.is_compiled_with_cuda() else {}
    try:
        yield
    finally:
        paddle.set_device(device)
        paddle.set_flags(flags)
        paddle.set_rng_state(numbers)

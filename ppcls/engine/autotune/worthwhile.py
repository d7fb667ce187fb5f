"""Decides whether a run is long enough that measuring how to execute its steps saves time.

Decisions:
- The duration of an update is estimated from the table of architectures, not measured: starting a process to
  measure it takes most of the time that a short run could save. An estimate also gives the same choice, and
  the same weights, each time.
- A measurement counts towards ``Global.time_limit``, so it may take only a small part of the limit.
- oneDNN's layers need 21 to 59 % of the time of Paddle's kernels (docs/measurements/cpu.md), so at least 40 %
  of the run is saved. The measurement must take at most half of that, because the estimate can be wrong by a
  factor of two, and other programs slow down the start of processes more than training.
"""

from __future__ import annotations

from ppcls.zoo import ZOO

_START = 12.0  # seconds to start the two processes that measure
# Updates of Paddle's kernels that take as long as those of a measurement and its inference, by both ways.
_UPDATES = 9
_SAVED = 0.4  # share of the run's duration that oneDNN's layers save
_MARGIN = 2.0  # ratio of the time saved to the duration of the measurement from which it is worthwhile
# Images/s of training with Paddle's kernels on one core, relative to the prediction that the table of
# architectures contains: 0.33 for ResNet18 and ResNet50 at 224 pixels.
_TRAINING = 0.33
# Exponent of the ratio of the sides of images for the time per image. It is below 2, because the update of
# the weights takes the same time for small images: ResNet18 needs 168 ms at 224 pixels and 12 ms at 32.
_EXPONENT = 1.3


_MOST_OF_LIMIT = 0.05  # share of the time limit of a run that a measurement on a GPU may take


def fits_limit(measurement: float, limit: float | None) -> bool:
    """Returns whether a measurement takes only a small part of the time limit of a run.

    Args:
        measurement: Expected duration of the measurement in seconds.
        limit: Time limit of the run in seconds; None without a limit.
    """
    return limit is None or measurement <= _MOST_OF_LIMIT * limit


def estimate_update(arch: str, images: int, side: int, cores: int) -> float | None:
    """Returns the expected duration in seconds of an update in float32 with Paddle's kernels on a CPU.

    Args:
        arch: Name of the architecture.
        images: Images per update.
        side: Side of the images in pixels.
        cores: Number of cores.

    Returns:
        The duration; None for an architecture whose speed is unknown.
    """
    entry = ZOO.get(arch)
    if entry is None or not entry.speed:
        return None
    scale: float = (entry.side / side) ** _EXPONENT
    return images / (_TRAINING * cores * entry.speed * scale)


def saves_time(updates: float, seconds: float, limit: float | None = None) -> bool:
    """Returns whether a measurement takes less time than it can save.

    Args:
        updates: Updates of the run.
        seconds: Duration of an update with Paddle's kernels.
        limit: Time limit of the run in seconds; None without a limit.
    """
    if limit is not None:
        updates = min(updates, limit / seconds)
    return updates * seconds * _SAVED >= _MARGIN * (_START + _UPDATES * seconds)

"""How many CPU cores a process really has."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the CPU cores this process really has: its affinity, less what its cgroup withholds."""
    limits = [
        _quota(cgroup / "cpu.max"),
        _quota(cgroup / "cpu/cpu.cfs_quota_us", cgroup / "cpu/cpu.cfs_period_us"),
    ]
    return max(1, int(min(len(os.sched_getaffinity(0)), *limits)))


def _quota(*files: Path) -> float:
    """Returns the cores of a cgroup's CPU quota (v2: one file, v1: two); infinity where it has none."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return math.inf if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf

"""The memory of an NVIDIA card as its driver tells it: without Paddle, and without a CUDA context."""

from __future__ import annotations

import fcntl
import math
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from ppcls.errors import UserError


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


_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def interface_of(address: str) -> str | None:
    """Returns the network interface that has an IPv4 address, such as ``eth0``; None where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


_MIB = 1 << 20


@dataclass(frozen=True)
class Load:
    """What a card does now.

    Attributes:
        gpu: Share of the last moments in which a kernel ran, 0..1; None where the driver doesn't tell, as of
            a part of a card (MIG).
        jpeg: The same of its JPEG decoder; None where it has none, too.
        used: Its memory that anybody uses, in MiB.
    """

    gpu: float | None
    jpeg: float | None
    used: int


@dataclass(frozen=True)
class Card:
    """One card.

    Attributes:
        uuid: Its name for good, whatever is visible.
        total: Its memory, in MiB.
    """

    uuid: str
    total: int

    def free(self) -> int:
        """Returns the memory that nobody uses now, in MiB."""
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(self.uuid)).free) // _MIB

    def load(self) -> Load:
        """Returns how busy it is, and how full."""
        handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
        gpu = _percent(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        jpeg = _percent(lambda: pynvml.nvmlDeviceGetJpgUtilization(handle)[0])
        return Load(gpu, jpeg, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) // _MIB)

    def near_cores(self) -> frozenset[int]:
        """Returns the CPU cores of its NUMA node; none where the driver doesn't know."""
        words = -(-(os.cpu_count() or 1) // 64)
        try:
            masks = pynvml.nvmlDeviceGetCpuAffinity(pynvml.nvmlDeviceGetHandleByUUID(self.uuid), words)
        except pynvml.NVMLError:
            return frozenset()
        return frozenset(
            64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1
        )


def _percent(ask: Callable[[], int]) -> float | None:
    """Returns what the driver tells in percent as a share; None where it doesn't."""
    try:
        return int(ask()) / 100
    except pynvml.NVMLError:
        return None


def find_card(number: int, visible: str | None, order: str | None) -> Card | None:
    """Finds a card as CUDA counts.

    Of a card that is split (MIG), ``visible`` must name the part by its UUID: its number means the whole.

    Args:
        number: From 0, among the visible ones.
        visible: CUDA_VISIBLE_DEVICES: numbers, or UUIDs or their beginnings; None for all.
        order: CUDA_DEVICE_ORDER.

    Returns:
        The card; None without a driver or without such a card.

    Raises:
        UserError: The driver may count the cards in another order than CUDA.
    """
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(each) for each in range(pynvml.nvmlDeviceGetCount())]
        chosen = handles if visible is None else _choose(handles, visible)
        if number >= len(chosen):
            return None
        handle = chosen[number]
        by_number = visible is None or visible.strip()[:1].isdecimal()
        names = {pynvml.nvmlDeviceGetName(each) for each in handles}
        uuid, total = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError:
        return None
    # CUDA puts the fastest card first unless told otherwise; the driver goes by slots.
    if by_number and len(names) > 1 and order != "PCI_BUS_ID":
        raise UserError(
            f"GPU {number} could be any of {', '.join(sorted(names))}, so its memory is not known; "
            "set the environment variable CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a UUID "
            "(nvidia-smi -L)"
        )
    return Card(uuid, int(total) // _MIB)


def _choose(handles: list[Any], visible: str) -> list[Any]:
    """Returns the cards that CUDA_VISIBLE_DEVICES names; as in CUDA, the first wrong name ends the list."""
    chosen = []
    for name in map(str.strip, visible.split(",")):
        if name.startswith("MIG-"):
            found = [pynvml.nvmlDeviceGetHandleByUUID(name)]
        elif name.startswith("GPU-"):
            found = [each for each in handles if pynvml.nvmlDeviceGetUUID(each).startswith(name)]
        else:
            found = handles[int(name) :][:1] if name.isdecimal() else []
        if len(found) != 1:
            break
        chosen += found
    return chosen

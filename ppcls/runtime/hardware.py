"""Reads CPU cores, network interfaces and NVIDIA cards, without Paddle and without a CUDA context."""

from __future__ import annotations

import math
import os
import platform
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from ppcls.errors import UserError

_MIB = 1 << 20


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the number of CPU cores that this process can use, from its affinity and its cgroup's quota.

    Args:
        cgroup: Folder of the cgroup.
    """
    limits = [
        _cpu_quota(cgroup / "cpu.max"),
        _cpu_quota(cgroup / "cpu/cpu.cfs_quota_us", cgroup / "cpu/cpu.cfs_period_us"),
    ]
    return max(1, int(min(len(os.sched_getaffinity(0)), *limits)))


def _cpu_quota(*files: Path) -> float:
    """Returns the CPU quota of a cgroup in cores; infinity without a quota.

    Args:
        *files: The files with the quota and its period: one for cgroup v2, two for cgroup v1.
    """
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return math.inf if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def physical_cores() -> int:
    """Returns the number of physical CPU cores that this process can use; hyperthreads share one."""
    return min(usable_cores(), len({_first_sibling(core) for core in os.sched_getaffinity(0)}))


def idle_cores(seconds: float = 0.2) -> int:
    """Returns the number of usable CPU cores that other programs leave idle, at least 1.

    Args:
        seconds: Duration of the measurement.
    """
    used = psutil.cpu_percent(seconds, percpu=True)
    idle: float = sum(1 - used[core] / 100 for core in os.sched_getaffinity(0) if core < len(used))
    return max(1, min(usable_cores(), round(idle)))


def divide_cores(near: Sequence[frozenset[int]], usable: frozenset[int]) -> list[frozenset[int]]:
    """Divides the cores of a machine among its processes, and returns the cores of each process.

    A process gets cores near its GPU. Processes whose GPUs are near the same cores share them equally, and
    both hyperthreads of a core go to one process if possible. If the cores near different GPUs overlap, all
    processes share all cores equally. With more processes than cores, some processes get no core.

    Args:
        near: Cores near the GPU of each process; an empty set if they are unknown.
        usable: Cores that the processes may use.
    """
    groups: dict[frozenset[int], list[int]] = {}
    for process, cores in enumerate(near):
        groups.setdefault(cores & usable or usable, []).append(process)
    if sum(map(len, groups)) > len(usable):
        groups = {usable: list(range(len(near)))}
    shares: dict[int, frozenset[int]] = {}
    for cores, processes in groups.items():
        ordered = sorted(cores, key=lambda core: (_first_sibling(core), core))
        bounds = [place * len(ordered) // len(processes) for place in range(len(processes) + 1)]
        for process, begin, end in zip(processes, bounds, bounds[1:], strict=False):
            shares[process] = frozenset(ordered[begin:end])
    return [shares[process] for process in range(len(near))]


def _first_sibling(core: int) -> int:
    """Returns the lowest number among the hyperthreads of a core; its own number if this is unknown."""
    file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return int(re.split("[,-]", file.read_text())[0])
    except (OSError, ValueError):
        return core


def read_machine_id() -> str:
    """Returns an id of the running machine, which is equal in all of its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def interface_of(address: str) -> str | None:
    """Returns the network interface that has an IPv4 address, such as ``eth0``; None if there is none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in addresses):
            return str(name)
    return None


@dataclass(frozen=True)
class CardLoad:
    """The load of a card at one moment.

    Attributes:
        gpu: Share of the last sampling period in which a kernel ran, 0..1; None if the driver does not report
            it, for example for a partition of a card (MIG).
        jpeg: Share of the last sampling period in which the JPEG decoder worked, 0..1; None if the card has
            no decoder, or the driver does not report it.
        used: Memory in use by all processes, in MiB.
    """

    gpu: float | None
    jpeg: float | None
    used: int


@dataclass(frozen=True)
class Card:
    """An NVIDIA card.

    Attributes:
        uuid: UUID, which does not depend on the visible devices.
        total: Memory in MiB.
    """

    uuid: str
    total: int

    def name(self) -> str:
        """Returns the name of the model."""
        return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(self.uuid)))

    def free(self) -> int:
        """Returns the free memory in MiB."""
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(self.uuid)).free) // _MIB

    def load(self) -> CardLoad:
        """Returns the current load of the card."""
        handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
        gpu = _share_or_none(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        jpeg = _share_or_none(lambda: pynvml.nvmlDeviceGetJpgUtilization(handle)[0])
        return CardLoad(gpu, jpeg, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) // _MIB)

    def near_cores(self) -> frozenset[int]:
        """Returns the CPU cores of the card's NUMA node; an empty set if the driver does not report them."""
        words = -(-(os.cpu_count() or 1) // 64)
        try:
            masks = pynvml.nvmlDeviceGetCpuAffinity(pynvml.nvmlDeviceGetHandleByUUID(self.uuid), words)
        except pynvml.NVMLError:
            return frozenset()
        return frozenset(
            64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1
        )


def _share_or_none(read_percent: Callable[[], int]) -> float | None:
    try:
        return int(read_percent()) / 100
    except pynvml.NVMLError:
        return None


@dataclass(frozen=True)
class InstalledCard:
    """An NVIDIA card of the machine, which may be invisible to CUDA.

    Attributes:
        name: Name of the model.
        capability: Compute capability, such as (8, 6).
        total: Memory in MiB.
        free: Free memory in MiB.
    """

    name: str
    capability: tuple[int, int]
    total: int
    free: int


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver of the machine.

    Attributes:
        version: Version of the driver.
        cuda: Newest version of CUDA that the driver supports.
        cards: All cards of the machine.
    """

    version: str
    cuda: str
    cards: tuple[InstalledCard, ...]


def read_driver() -> Driver | None:
    """Returns the NVIDIA driver and its cards; None without a driver or cards."""
    try:
        pynvml.nvmlInit()
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        cards = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            total = int(memory.total)
            free = int(memory.free)
            cards.append(InstalledCard(str(name), (major, minor), total // _MIB, free // _MIB))
        version = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
    return Driver(version, f"{cuda // 1000}.{cuda % 1000 // 10}", tuple(cards)) if cards else None


def find_card(number: int, visible: str | None, order: str | None) -> Card | None:
    """Returns the card with the given CUDA device index.

    To select a partition of a card (MIG), ``visible`` must contain its UUID. An index selects a whole card.

    Args:
        number: Index of the card among the visible cards, from 0.
        visible: CUDA_VISIBLE_DEVICES: numbers, UUIDs or prefixes of UUIDs; None for all cards.
        order: CUDA_DEVICE_ORDER.

    Returns:
        The card; None without a driver or without this card.

    Raises:
        UserError: The driver may number the cards in a different order than CUDA.
    """
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        chosen = handles if visible is None else _visible_handles(handles, visible)
        if number >= len(chosen):
            return None
        handle = chosen[number]
        by_number = visible is None or visible.strip()[:1].isdecimal()
        models = {pynvml.nvmlDeviceGetName(handle) for handle in handles}
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError:
        return None
    # By default, CUDA sorts cards by speed, and the driver sorts them by slot.
    if by_number and len(models) > 1 and order != "PCI_BUS_ID":
        raise UserError(
            f"GPU {number} could be any of {', '.join(sorted(models))}, so its memory is unknown; "
            "set the environment variable CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a UUID "
            "(nvidia-smi -L)"
        )
    return Card(uuid, int(total) // _MIB)


def _visible_handles(handles: list[Any], visible: str) -> list[Any]:
    """Returns the cards in CUDA_VISIBLE_DEVICES, up to the first invalid name, as CUDA does."""
    chosen = []
    for name in map(str.strip, visible.split(",")):
        if name.startswith("MIG-"):
            matches = [pynvml.nvmlDeviceGetHandleByUUID(name)]
        elif name.startswith("GPU-"):
            matches = [handle for handle in handles if pynvml.nvmlDeviceGetUUID(handle).startswith(name)]
        else:
            matches = handles[int(name) :][:1] if name.isdecimal() else []
        if len(matches) != 1:
            break
        chosen += matches
    return chosen


def read_cpu_model() -> str:
    """Returns the name of the processor, or of its instruction set if Linux does not report the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())

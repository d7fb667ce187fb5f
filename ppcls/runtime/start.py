"""Starts a run in this process: chooses device, threads and memory, imports Paddle, and connects the ranks.

Only `ppcls.runtime` reads the environment variables PADDLE_*, FLAGS_*, CUDA_* and OMP_*.

Decisions:
- Threads and GPU memory are chosen before Paddle is imported, because Paddle reads them at its import. The
  device is chosen after it, because only Paddle knows which GPUs its build supports.
- A run on a GPU first computes one small sum. Builds without kernels for a GPU otherwise fail
  later, or, with Paddle 2.6, return whatever was in the memory.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution
from typing import Literal

from ppcls.errors import UserError, counted
from ppcls.runtime import paddle_import
from ppcls.runtime.device import check_gpu_kernels, choose_device
from ppcls.runtime.hardware import (
    Card,
    divide_cores,
    find_card,
    interface_of,
    read_machine_id,
    usable_cores,
)
from ppcls.runtime.launch import local_processes, read_launch, restore_proxies, selected_gpu
from ppcls.runtime.memory import MemoryBudget, MemoryRequest, MemoryUsage, divide_memory, read_memory_request
from ppcls.runtime.paddle_import import PaddleImport
from ppcls.runtime.progress import Progress
from ppcls.runtime.settings import RuntimeSettings


@dataclass(frozen=True)
class Runtime:
    """Properties of one process of a run.

    Attributes:
        rank: Rank of this process, from 0.
        world_size: Number of processes.
        device: Device of the model.
        device_id: Number of the GPU of this process for Paddle and DALI; None on a CPU.
        cores: Number of CPU cores of this process: the usable cores of the machine divided by its processes.
        threads: Number of Paddle's CPU threads.
        card: GPU whose memory is divided between Paddle and DALI; None if there is no limit, or on a CPU.
        budget: Division of the GPU memory; None if there is no limit.
        imported: Settings with which Paddle was imported.
        embedded: Whether the process continues after the run, for example a notebook.
        progress: Object to which the activities of the process are reported, for the watchdog.
        nodes: Number of machines.
        memory_note: Note about settings of GPU memory that have no effect; "" if there are none.
        cpus: CPU cores for this process, near its GPU, which no other process of the run uses; empty if they
            are unknown, on a CPU, and without DALI.
    """

    rank: int = 0
    world_size: int = 1
    device: Literal["cpu", "gpu"] = "cpu"
    device_id: int | None = None
    cores: int = 1
    threads: int = 1
    card: Card | None = None
    budget: MemoryBudget | None = None
    imported: PaddleImport | None = field(default=None, repr=False)
    embedded: bool = False
    progress: Progress = field(default_factory=Progress, compare=False, repr=False)
    nodes: int = 1
    memory_note: str = ""
    cpus: frozenset[int] = frozenset()

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and reports."""
        return self.rank == 0

    def describe(self) -> str:
        """Returns a line for the log about Paddle, the device, the processes and the threads."""
        import paddle

        device = f"GPU {self.device_id}" if self.device == "gpu" else "CPU"
        note = self.imported.describe(self.cores) if self.imported is not None else ""
        processes = counted(self.world_size, "process")
        return (
            f"Paddle {paddle.__version__} on {device}, {processes}; {counted(self.cores, 'core')} per "
            f"process: Paddle uses {counted(self.threads, 'thread')}{note}"
            f"{f'; {self.memory_note}' if self.memory_note else ''}"
        )

    @contextmanager
    def selected(self) -> Iterator[None]:
        """Selects the device in Paddle within a ``with`` block.

        Another model of the process may have selected another device. A kernel of the CPU that receives
        tensors of a GPU ends the process. Paddle has one selected device for all threads, so models on
        different devices must not run in two threads at the same time.
        """
        import paddle

        own = "cpu" if self.device_id is None else f"gpu:{self.device_id}"
        other = paddle.device.get_device()
        if other == own:
            yield
            return
        paddle.device.set_device(own)
        try:
            yield
        finally:
            paddle.device.set_device(other)

    def synchronize(self) -> None:
        """Waits for Paddle's work on the GPU. Does not wait for DALI, which uses other streams."""
        if self.device == "gpu":
            import paddle

            paddle.device.cuda.current_stream(self.device_id).synchronize()

    def memory_usage(self) -> MemoryUsage:
        """Returns the current memory usage of the GPU. Must only be called if ``card`` is not None."""
        import paddle

        assert self.card is not None
        return MemoryUsage(self.card.free(), paddle.device.cuda.memory_reserved(self.device_id) >> 20)


_imported: PaddleImport | None = None  # Paddle can be imported only once per process


def start(settings: RuntimeSettings, progress: Progress | None = None, embedded: bool = False) -> Runtime:
    """Chooses device, threads and GPU memory, imports Paddle, and connects the ranks.

    If Paddle is already imported, for example by an earlier run, it keeps the settings of its import.

    Args:
        settings: Device, threads, memory and timeouts.
        progress: Object to which the activities of the process are reported; None without a watchdog.
        embedded: See `Runtime`.

    Raises:
        UserError: The requested GPU can't be used with the installed Paddle, the environment contradicts
            ``deterministic``, the GPU memory can't be divided as requested, or the run needs a different
            value of a setting that Paddle has already read at its import.
    """
    hidden = ["No ccache found", "When training, we now always track global mean"]
    if settings.device == "cpu":
        hidden.append("You are using GPU version Paddle, but your CUDA device is not set properly")
    for text in hidden:
        warnings.filterwarnings("ignore", message=text)
    progress = progress or Progress()
    launch = read_launch()
    cores = max(1, usable_cores() // local_processes())
    if settings.deterministic:
        paddle_import.check_deterministic()
    request = read_memory_request(settings.gpu_memory_fraction, settings.use_dali, os.environ)
    imported = _import_paddle(settings, request, cores)
    device, device_id = _set_device(settings, request, imported)
    if launch.world_size > 1:
        _connect_ranks(device, progress)
    restore_proxies()
    runtime = Runtime(
        launch.rank,
        launch.world_size,
        device,
        device_id,
        cores,
        imported.threads,
        imported.card if device == "gpu" else None,
        imported.budget if device == "gpu" else None,
        imported,
        embedded,
        progress,
        nodes=-(-launch.world_size // local_processes()),
        memory_note=request.describe_unused() if device == "cpu" else "",
    )
    if device == "gpu" and settings.use_dali:
        return replace(runtime, cpus=_share_cores(runtime, selected_card()))
    return runtime


def _share_cores(runtime: Runtime, card: Card | None) -> frozenset[int]:
    """Returns the CPU cores for this process. All ranks must call it."""
    from ppcls.runtime.collectives import all_gather_json

    machine = read_machine_id()
    near = sorted(card.near_cores()) if card is not None else []
    ranks = all_gather_json(runtime, [machine, near])
    local = [rank for rank, (of_rank, _) in enumerate(ranks) if of_rank == machine]
    shares = divide_cores([frozenset(ranks[rank][1]) for rank in local], frozenset(os.sched_getaffinity(0)))
    return shares[local.index(runtime.rank)]


def start_on_cpu() -> None:
    """Imports Paddle for measurements on the CPU, and hides its messages about static programs."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    start(RuntimeSettings(device="cpu"))


def selected_card() -> Card | None:
    """Returns the NVIDIA card of this process; None without a card.

    Raises:
        UserError: See `ppcls.runtime.hardware.find_card`.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    order = os.environ.get("CUDA_DEVICE_ORDER")
    return find_card(selected_gpu(), visible, order)


def _import_paddle(settings: RuntimeSettings, request: MemoryRequest, cores: int) -> PaddleImport:
    """Imports Paddle. If it is already imported, checks that its settings fit those of the run."""
    global _imported
    if "paddle" not in sys.modules:
        limited = settings.device != "cpu" and (request.fraction is not None or request.limit is not None)
        card = selected_card() if limited else None
        budget = divide_memory(request, card.total, card.free()) if card is not None else None
        # On a GPU, only DALI has work for many CPU threads.
        threads = 1 if settings.use_dali and expects_gpu(settings, card) else cores
        _imported = paddle_import.import_with(settings, request, card, budget, threads)
    else:
        _imported = _imported or paddle_import.describe_early_import()
        wants_share = settings.device != "cpu" and request.fraction is not None and not request.is_default
        _imported.check_settings(settings, request if wants_share and selected_card() is not None else None)
    return _imported


def expects_gpu(settings: RuntimeSettings, card: Card | None) -> bool:
    """Returns whether a run will probably train on a GPU, before Paddle is imported.

    Args:
        settings: Device of the run.
        card: Card of this process; None without one.
    """
    if settings.device == "auto":
        return card is not None and any(Distribution.discover(name="paddlepaddle-gpu"))
    return settings.device == "gpu"


def _set_device(
    settings: RuntimeSettings, request: MemoryRequest, imported: PaddleImport
) -> tuple[Literal["cpu", "gpu"], int | None]:
    """Chooses and checks the device, and selects it in Paddle.

    Returns:
        The device, and the number of the GPU or None.
    """
    import paddle

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = choose_device(settings.device, local_processes(), selected_gpu(), visible)
    if device == "cpu":
        paddle.set_device("cpu")
        return device, None
    if request.fraction is not None and not request.is_default and imported.budget is None:
        raise UserError(
            f"{request.setting}: the NVIDIA driver (NVML) does not report the memory of the GPU, so it can't "
            "be divided; remove this setting"
        )
    device_id = selected_gpu()
    check_gpu_kernels(device_id)
    paddle_import.set_speed_flags(imported.deterministic)
    paddle.set_device(f"gpu:{device_id}")
    return device, device_id


def _connect_ranks(device: str, progress: Progress) -> None:
    import paddle

    if device == "cpu":
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"  # a GPU build would use NCCL, which needs GPUs
    _set_gloo_interface()
    progress.report("waiting for all processes to start")
    paddle.distributed.init_parallel_env()
    progress.report("starting")


def _set_gloo_interface() -> None:
    """Makes gloo use the network interface with the address that the launcher uses.

    By default gloo uses the interface to which the host name resolves, which may be the loopback interface.
    Training on GPUs needs gloo too, because the ranks exchange requests over it.
    """
    address = os.environ.get("PADDLE_CURRENT_ENDPOINT", "").rpartition(":")[0]
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_of(address)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name

"""Starts a run in this process: settles device, threads, memory and ranks, then imports Paddle.

Only `ppcls.runtime` reads the environment variables PADDLE_*, FLAGS_*, CUDA_* and OMP_*.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import Literal

from ppcls.config.sections.run import Global
from ppcls.errors import UserError
from ppcls.runtime import paddle_import
from ppcls.runtime.device import check_gpu_kernels, choose_device
from ppcls.runtime.hardware import Card, find_card, interface_of, usable_cores
from ppcls.runtime.launch import local_processes, read_launch, selected_gpu
from ppcls.runtime.memory import MemoryBudget, MemoryRequest, MemoryUsage, divide_memory, read_memory_request
from ppcls.runtime.paddle_import import PaddleImport
from ppcls.runtime.progress import Progress


@dataclass(frozen=True)
class Runtime:
    """One process of a run.

    Attributes:
        rank: Rank of this process, from 0.
        world_size: Number of processes.
        device: Device of the model.
        device_id: GPU of this process, as Paddle and DALI count; None on a CPU.
        cores: CPU cores of this process: the usable cores, divided among the processes of the machine.
        threads: Paddle's CPU threads.
        card: GPU whose memory is divided; None if there is no limit, or on a CPU.
        budget: Division of its memory; None if there is no limit.
        imported: Settings that Paddle was imported with.
        embedded: Whether the process outlives the run, for example a notebook.
        progress: Receives reports of what the process is doing, for the watchdog.
        nodes: Number of machines.
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

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and reports."""
        return self.rank == 0

    def describe(self) -> str:
        """Returns one line for the log."""
        import paddle

        device = f"GPU {self.device_id}" if self.device == "gpu" else "CPU"
        note = self.imported.describe(self.cores) if self.imported is not None else ""
        processes = f"{self.world_size} process{'es' if self.world_size > 1 else ''}"
        return (
            f"Paddle {paddle.__version__} on {device}, {processes}; {self.cores} cores per process: "
            f"Paddle {self.threads} threads{note}, DALI {self.cores} unless set"
        )

    def synchronize(self) -> None:
        """Waits for Paddle's work on the GPU; not for DALI, which works ahead in streams of its own."""
        if self.device == "gpu":
            import paddle

            paddle.device.cuda.current_stream(self.device_id).synchronize()

    def memory_usage(self) -> MemoryUsage:
        """Returns the current memory usage of ``card``, which must not be None."""
        import paddle

        assert self.card is not None
        return MemoryUsage(self.card.free(), paddle.device.cuda.memory_reserved(self.device_id) >> 20)


_imported: PaddleImport | None = None  # Paddle can be imported only once per process


def start(settings: Global, progress: Progress | None = None, embedded: bool = False) -> Runtime:
    """Settles device, threads, ranks and GPU memory, and imports Paddle.

    If Paddle is imported already, for example by an earlier run, the settings that it read then stay.

    Args:
        progress: Receives reports of what the process is doing; None for no watchdog.
        embedded: See `Runtime`.

    Raises:
        UserError: A GPU is requested that this Paddle can't use; the environment contradicts
            ``deterministic``; the GPU's memory can't be divided as requested; or the run asks for a setting
            that Paddle reads only at import, and Paddle is imported already.
    """
    for text in ("No ccache found", "When training, we now always track global mean"):
        warnings.filterwarnings("ignore", message=text)
    progress, launch = progress or Progress(), read_launch()
    cores = max(1, usable_cores() // local_processes())
    if settings.deterministic:
        paddle_import.check_deterministic()
    request = read_memory_request(settings.gpu_memory_fraction, settings.use_dali, os.environ)
    imported = _import_paddle(settings, request, cores)
    device, device_id = _set_device(settings, request, imported)
    if launch.world_size > 1:
        _connect_ranks(device, progress)
    return Runtime(
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
    )


def start_on_cpu() -> None:
    """Imports Paddle to measure models on the CPU, without its messages about static programs."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    start(Global(device="cpu"))


def selected_card() -> Card | None:
    """Returns the card of this process; None if there is none.

    Raises:
        UserError: As `ppcls.runtime.hardware.find_card`.
    """
    visible, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
    return find_card(selected_gpu(), visible, order)


def _import_paddle(settings: Global, request: MemoryRequest, cores: int) -> PaddleImport:
    """Imports Paddle, or checks that the imported one fits the settings."""
    global _imported
    if "paddle" not in sys.modules:
        limited = settings.device != "cpu" and (request.fraction is not None or request.limit is not None)
        card = selected_card() if limited else None
        budget = divide_memory(request, card.total, card.free()) if card is not None else None
        _imported = paddle_import.import_with(settings, request, card, budget, cores)
    else:
        _imported = _imported or paddle_import.describe_early_import()
        wants_share = settings.device != "cpu" and request.fraction is not None and not request.is_default
        _imported.check_settings(settings, request if wants_share and selected_card() is not None else None)
    return _imported


def _set_device(
    settings: Global, request: MemoryRequest, imported: PaddleImport
) -> tuple[Literal["cpu", "gpu"], int | None]:
    """Chooses the device, checks it and makes it Paddle's; returns it and the number of the GPU."""
    import paddle

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = choose_device(settings.device, local_processes(), selected_gpu(), visible)
    if device == "cpu":
        paddle.set_device("cpu")
        return device, None
    if request.fraction is not None and not request.is_default and imported.budget is None:
        raise UserError(
            f"{request.setting}: the NVIDIA driver (NVML) does not report the memory of the GPU; unset it"
        )
    device_id = selected_gpu()
    check_gpu_kernels(device_id)
    paddle_import.set_speed_flags(imported.deterministic)
    paddle.set_device(f"gpu:{device_id}")
    paddle_import.set_speed_flags(imported.deterministic)
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
    """Makes gloo use the network interface whose address the launcher knows.

    By default gloo uses the interface of the machine's own name, which may be the loopback. Training on
    GPUs needs gloo, too: the ranks exchange signals through it.
    """
    address = os.environ.get("PADDLE_CURRENT_ENDPOINT", "").rpartition(":")[0]
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_of(address)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name

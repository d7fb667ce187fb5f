"""Where a run takes place: rank, device, cores. The only reader of PADDLE_*, FLAGS_*, CUDA_* and OMP_*.

Everything that must be settled before Paddle is imported is settled in `start`.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ppcls.config.sections.run import Global
from ppcls.errors import UserError
from ppcls.runtime.device import choose_device, try_gpu
from ppcls.runtime.failures import Launch
from ppcls.runtime.hardware import Card, find_card, interface_of, usable_cores
from ppcls.runtime.imported import Imported, import_paddle
from ppcls.runtime.memory import Asked, Budget, Usage, plan, read_asked
from ppcls.runtime.progress import Progress

_SEARCH = "FLAGS_cudnn_exhaustive_search"
# Set where the environment does not, once Paddle is imported, for they pay: docs/performance.md. One is taken
# out by `stop_search`.
SPEED_FLAGS = {
    _SEARCH: True,  # times cuDNN's algorithms once for each convolution
    "FLAGS_cudnn_batchnorm_spatial_persistent": True,
}
# What has Paddle, cuDNN and cuBLAS compute the same bits in each run; read at Paddle's import.
_DETERMINISTIC = {
    "FLAGS_cudnn_deterministic": "1",
    "FLAGS_embedding_deterministic": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


@dataclass(frozen=True)
class Runtime:
    """One process of a run.

    Attributes:
        rank: Of this process, from 0.
        world: Number of processes.
        device: Where the model is.
        device_id: Which GPU, as Paddle and DALI count; None on a CPU.
        cores: CPU cores of this process: those it may use, shared among the node's processes.
        threads: Paddle's CPU threads.
        card: The GPU whose memory is divided; None where it is not, or on a CPU.
        budget: How it is divided; None where it is not.
        imported: What Paddle was imported with.
        lent: Whether the process is somebody else's, such as a notebook's, and lives on after the run.
        progress: Is told what the process does, for who watches it.
        hosts: Machines of the run.
    """

    rank: int = 0
    world: int = 1
    device: Literal["cpu", "gpu"] = "cpu"
    device_id: int | None = None
    cores: int = 1
    threads: int = 1
    card: Card | None = None
    budget: Budget | None = None
    imported: Imported | None = field(default=None, repr=False)
    lent: bool = False
    progress: Progress = field(default_factory=Progress, compare=False, repr=False)
    hosts: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and reports."""
        return self.rank == 0

    def describe(self) -> str:
        """Returns one line for the log."""
        import paddle

        where = f"GPU {self.device_id}" if self.device == "gpu" else "CPU"
        early = self.imported.describe(self.cores) if self.imported is not None else ""
        processes = f"{self.world} process{'es' if self.world > 1 else ''}"
        return (
            f"Paddle {paddle.__version__} on {where}, {processes}; {self.cores} cores a process: "
            f"Paddle {self.threads} threads{early}, DALI {self.cores} unless set"
        )

    def synchronize(self) -> None:
        """Waits for what Paddle's GPU has to do; not for DALI, which works ahead in streams of its own."""
        if self.device == "gpu":
            import paddle

            paddle.device.cuda.current_stream(self.device_id).synchronize()

    def memory_usage(self) -> Usage:
        """Returns who has what of the card's memory now; there must be a ``card``."""
        import paddle

        assert self.card is not None
        return Usage(self.card.free(), paddle.device.cuda.memory_reserved(self.device_id) >> 20)


def read_launch() -> Launch:
    """Returns what Paddle's launcher tells this process; that there is only this one where there is none."""
    told = os.environ
    rank, world = int(told.get("PADDLE_TRAINER_ID", "0")), int(told.get("PADDLE_TRAINERS_NUM", "1"))
    name = re.sub(r"[^\w.-]", "_", told.get("PADDLE_MASTER") or f"process_{os.getpid()}")
    # The launcher shows the first of its processes on its terminal; others' output goes to files alone.
    shown = Path(told.get("PADDLE_LOG_DIR", "")) / "workerlog.0"
    elsewhere = world > 1 and int(told.get("PADDLE_LOCAL_RANK", rank)) > 0 and shown.is_file()
    return Launch(rank, world, name, shown if elsewhere else None)


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the environment of a process to start: this one's, without what a launcher told this one.

    Args:
        changes: Variables to set; None leaves one out.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_")}
    wanted: dict[str, str | None] = {**kept, **changes}
    return {name: value for name, value in wanted.items() if value is not None}


_imported: Imported | None = None  # once Paddle is: this process's, for there is no second import


def start(settings: Global, progress: Progress | None = None, lent: bool = False) -> Runtime:
    """Settles device, threads, processes and the GPU's memory, and imports Paddle.

    Where Paddle is imported already, be it by an earlier run, what it read then stays.

    Args:
        settings: The run's.
        progress: Is told what the process does; None where nobody watches it.
        lent: See `Runtime`.

    Raises:
        UserError: A GPU is asked for and there is none that this Paddle can use; the environment contradicts
            ``deterministic``; its memory can't be divided as config and environment say; or the run asks
            for what Paddle, imported already, no longer takes.
    """
    global _imported
    for text in ("No ccache found", "When training, we now always track global mean"):
        warnings.filterwarnings("ignore", message=text)
    progress, launch = progress or Progress(), read_launch()
    rank, world = launch.rank, launch.world
    cores = max(1, usable_cores() // _processes_here())
    if settings.deterministic:
        _refuse_search()
    asked = read_asked(settings.gpu_memory_fraction, settings.use_dali, os.environ)
    if "paddle" not in sys.modules:
        _imported = _import_settled(settings, asked, cores)
    else:
        _imported = _imported or Imported(
            _threads_of_import(), deterministic=_DETERMINISTIC.items() <= os.environ.items()
        )
        wants_share = settings.device != "cpu" and asked.fraction is not None and not asked.by_default
        _imported.refuse_other(settings, asked if wants_share and selected_card() is not None else None)
    threads, card, budget = _imported.threads, _imported.card, _imported.budget
    import paddle

    device = _choose_device(settings.device)
    device_id = None
    if device == "gpu":
        device_id = _selected_gpu()
        if asked.fraction is not None and not asked.by_default and budget is None:
            raise UserError(
                f"{asked.setting}: the NVIDIA driver (NVML) does not say what memory the GPU has; unset it"
            )
        try_gpu(device_id)
        deterministic = _imported.deterministic
        _set_speed_flags(deterministic)
        paddle.set_device(f"gpu:{device_id}")
        _set_speed_flags(deterministic)
    else:
        card = budget = None
        paddle.set_device("cpu")
    if world > 1:
        if device == "cpu":
            os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"  # a GPU build would take NCCL, which needs GPUs
        _name_interface()
        progress.tell("waiting for all processes to start")
        paddle.distributed.init_parallel_env()
        progress.tell("starting")
    hosts = -(-world // _processes_here())
    return Runtime(
        rank, world, device, device_id, cores, threads, card, budget, _imported, lent, progress, hosts
    )


def _import_settled(settings: Global, asked: Asked, cores: int) -> Imported:
    """Imports Paddle with all that it reads then, and takes back what else would pass for the user's."""
    threads = _set_threads(settings.cpu_threads, cores, launched="PADDLE_TRAINERS_NUM" in os.environ)
    if settings.deterministic:
        os.environ |= {"MKL_CBWR": "AUTO", **_DETERMINISTIC, **_given("MKL_CBWR")}
    card, budget = (None, None) if settings.device == "cpu" else _divide_memory(asked)
    flags = budget.flags() if budget is not None else {}
    users = _given(*flags)
    os.environ |= flags
    os.environ.setdefault("GLOG_minloglevel", "1")  # its info lines concern nobody
    import_paddle()
    for name in flags:
        del os.environ[name]
    os.environ |= users
    return Imported(
        threads, settings.deterministic, True, asked if budget is not None else None, card, budget
    )


def _given(*names: str) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _name_interface() -> None:
    """Has gloo use the network interface that the launcher knows this process by.

    By itself gloo takes the one that the machine's name resolves to, which may be the loopback. Training on
    GPUs needs gloo too: hosts tell each other what signals they heard.
    """
    address = os.environ.get("PADDLE_CURRENT_ENDPOINT", "").rpartition(":")[0]
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_of(address)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _set_threads(wanted: int | None, cores: int, launched: bool) -> int:
    """Sets OMP_NUM_THREADS, which Paddle reads at import, and returns it.

    A user's own value stands. Under the launcher a 1 is not the user's: the launcher imports Paddle,
    which sets 1 where nothing is set, and hands that on.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    if wanted is None and given.isdecimal() and int(given) > 0 and not (launched and given == "1"):
        return int(given)
    threads = wanted or cores
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads


def _threads_of_import() -> int:
    """Returns the CPU threads of a Paddle that is imported: it leaves their number in OMP_NUM_THREADS."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else 1


def _refuse_search() -> None:
    """Refuses to be deterministic where the environment asks for a search that goes by time.

    Raises:
        UserError: It does.
    """
    if os.environ.get(_SEARCH, "0").lower() not in ("0", "false", ""):
        raise UserError(
            f"{_SEARCH} chooses convolutions by their time, so runs differ, and "
            "Global.deterministic is True; unset one of them"
        )


def _set_speed_flags(deterministic: bool) -> None:
    """Sets, where the environment does not, the flags that pay; docs/performance.md has the figures."""
    import paddle

    wanted = {name: value for name, value in SPEED_FLAGS.items() if name not in os.environ}
    if deterministic:
        wanted.pop(_SEARCH, None)
    paddle.set_flags(wanted)


def stop_search() -> bool:
    """Ends cuDNN's search, for work that it would disturb, unless the environment asks for it.

    It ends for good: that work may go on beside what the process starts later.

    Returns:
        Whether there is none.
    """
    import paddle

    if _SEARCH in os.environ:
        return not paddle.get_flags(_SEARCH)[_SEARCH]
    SPEED_FLAGS.pop(_SEARCH, None)
    paddle.set_flags({_SEARCH: False})
    return True


def _divide_memory(asked: Asked) -> tuple[Card | None, Budget | None]:
    """Says which card Paddle and DALI share, and how; None, None where there is nothing to divide."""
    if asked.fraction is None and asked.limit is None:
        return None, None
    card = selected_card()
    return (card, plan(asked, card.total, card.free())) if card is not None else (None, None)


def start_to_measure() -> None:
    """Imports Paddle to describe models to it, on the CPU; quiet about the static programs it takes."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    start(Global(device="cpu"))


def selected_card() -> Card | None:
    """Returns the GPU of this process as NVML knows it; None where there is none.

    Raises:
        UserError: As `ppcls.runtime.hardware.find_card`.
    """
    visible, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
    return find_card(_selected_gpu(), visible, order)


def _choose_device(wanted: str) -> Literal["cpu", "gpu"]:
    return choose_device(wanted, _processes_here(), _selected_gpu(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def _processes_here() -> int:
    """Returns the processes of the run on this machine; 1 without a launcher."""
    return int(os.environ.get("PADDLE_LOCAL_SIZE", "1"))


def _selected_gpu() -> int:
    """Returns the GPU that the launcher chose for this process, as Paddle counts; 0 without a launcher."""
    return int(os.environ.get("FLAGS_selected_gpus", "0").split(",")[0])  # noqa: SIM112 - Paddle's spelling

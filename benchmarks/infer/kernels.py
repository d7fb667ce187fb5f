"""``python benchmarks/run.py kernels``: in which kernels predictions spend their time."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ppcls.cli.arguments.options import option
from ppcls.cli.command import command, write_output
from ppcls.cli.shared_options import trust_option
from ppcls.errors import UserError

_WORKER = Path(__file__).resolve().parents[1] / "worker.py"
_TIMEOUT = 600.0  # seconds per model
_WARM_UP = 10  # batches, in which kernels are chosen and CUDA graphs are captured
_GPU_KINDS = ("Kernel", "Memcpy", "Memset")  # of events in Paddle's traces
_CPU_KINDS = ("Operator",)
_SUFFIX = re.compile(r"( dygraph)?(\[[\d.]+ \w+\])?$")  # of the names in traces, such as [4.2 us]
_ON_CPU = "operators of Paddle, without the layers of oneDNN"


@dataclass(frozen=True, kw_only=True)
class KernelsOptions:
    """List the kernels in which the predictions of a model spend their time.

    The time of a kernel is the shortest of --batches batches, because other programs can only lengthen it. On
    a CPU, the operators of Paddle are listed instead.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py kernels --model runs/pets/best_model --batch-size 32",
        "python benchmarks/run.py kernels --random ResNet50 MobileNetV3_large_x1_0 --batch-size 128",
    )

    model: tuple[Path, ...] = option(
        (), "models: checkpoint folders, or folders written by ppcls export", metavar="PATH"
    )
    random: tuple[str, ...] = option(
        (),
        "architectures with random weights, on a GPU in float16 as `AMP.level: O2` trains them",
        metavar="NAME",
    )
    override: tuple[str, ...] = option(
        (), "set values of Global, such as Global.device=cpu", names=["-o"], metavar="KEY=VALUE"
    )
    batch_size: int = option(32, "images per batch", gt=0)
    batches: int = option(6, "number of batches", gt=0)
    top: int = option(15, "number of kernels to list", gt=0)
    trust: bool = trust_option()


@dataclass(frozen=True)
class KernelTime:
    """The time of a kernel in a batch.

    Attributes:
        name: Name of the kernel.
        milliseconds: Time of all its calls in a batch.
        calls: Number of its calls in a batch.
    """

    name: str
    milliseconds: float
    calls: float


@command("kernels", KernelsOptions)
def list_kernels(options: KernelsOptions) -> None:
    """Prints a table for each model."""
    from benchmarks.infer.random_models import write_random_models
    from ppcls.engine.autotune.processes import MeasuringProcess, worker_command
    from ppcls.files.temporary import temporary_folder

    if not options.model and not options.random:
        raise UserError("nothing to measure; use --model PATH or --random NAME")
    with temporary_folder("models") as folder:
        random = write_random_models(options.random, options.override, folder)
        for name, path in zip([*options.model, *options.random], [*options.model, *random], strict=True):
            task = {
                "model": str(path),
                "overrides": list(options.override),
                "trust": options.trust,
                "batch_size": options.batch_size,
                "batches": options.batches,
            }
            measured = MeasuringProcess(worker_command(_WORKER, "kernels"), task, _TIMEOUT).run()
            rows = [KernelTime(*row) for row in measured["kernels"]]
            heading = f"{name}, batch {options.batch_size}, {measured['engine']}"
            heading += "" if measured["on_gpu"] else f": {_ON_CPU}"
            write_output(describe(heading, measured["milliseconds"], rows, options.top))


def describe(heading: str, whole: float, rows: Sequence[KernelTime], top: int) -> str:
    """Returns the table of a model.

    Args:
        heading: Its first line.
        whole: Time of a batch in milliseconds, without the profiler.
        rows: Times of the kernels.
        top: Number of kernels to list.
    """
    total = sum(row.milliseconds for row in rows)
    calls = sum(row.calls for row in rows)
    lines = [
        heading,
        f"{'whole batch':12} {whole:8.3f} ms",
        f"{'all kernels':12} {total:8.3f} ms {calls:6g} calls",
    ]
    longest = sorted(rows, key=lambda row: -row.milliseconds)[:top]
    lines += [f"{'':12} {row.milliseconds:8.3f} ms {row.calls:6g} x {row.name}" for row in longest]
    return "\n".join(lines) + "\n"


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Predicts batches in this process.

    Args:
        task: Dict with ``model``, ``overrides``, ``trust``, ``batch_size`` and ``batches``.

    Returns:
        Dict with the ``engine``, whether it runs ``on_gpu``, the median ``milliseconds`` of a batch without
        the profiler, and ``kernels``, whose rows are those of `KernelTime`.

    Raises:
        UserError: The model cannot be loaded or run.
    """
    from ppcls.deploy.models.source import find_source
    from ppcls.deploy.predictor import Predictor, join

    predictor = Predictor(find_source(Path(task["model"]), task["overrides"], trust=task["trust"]))
    from ppcls.engine.profiling.profile import Trace  # imports Paddle, which the predictor has set up

    images = predictor.description.random_images(task["batch_size"], np.random.default_rng(0))
    batch = join(list(images), predictor.model)
    for _ in range(_WARM_UP):
        predictor.model.run(batch)
    seconds = []
    for _ in range(task["batches"]):
        began = time.perf_counter()
        predictor.model.run(batch)
        seconds.append(time.perf_counter() - began)
    on_gpu = "(GPU" in predictor.model.engine
    trace = Trace(on_gpu)
    trace.start()
    for _ in range(task["batches"]):
        predictor.model.run(batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        trace.save(file)
        events = json.loads(file.read_text(encoding="utf-8", errors="replace"), strict=False)["traceEvents"]
    kinds = _GPU_KINDS if on_gpu else _CPU_KINDS
    rows = sum_up((event for event in events if event.get("cat") in kinds), task["batches"])
    return {
        "engine": predictor.model.engine,
        "on_gpu": on_gpu,
        "milliseconds": 1e3 * statistics.median(seconds),
        "kernels": [[row.name, row.milliseconds, row.calls] for row in rows],
    }


def sum_up(events: Iterable[Mapping[str, Any]], batches: int) -> list[KernelTime]:
    """Returns the times of kernels from the events of a trace in the format of chrome://tracing.

    Args:
        events: Events with ``name``, ``ts`` and ``dur`` in microseconds.
        batches: Number of batches, which had the same calls. Calls of other numbers are averaged.
    """
    durations: dict[str, list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda event: float(event["ts"])):
        durations[_SUFFIX.sub("", event["name"]).removeprefix("void ")].append(float(event["dur"]))
    rows = []
    for name, microseconds in durations.items():
        calls, rest = divmod(len(microseconds), batches)
        if rest:
            rows.append(KernelTime(name, sum(microseconds) / batches / 1e3, len(microseconds) / batches))
        else:
            shortest = np.reshape(microseconds, (batches, calls)).min(0)
            rows.append(KernelTime(name, float(shortest.sum()) / 1e3, calls))
    return rows

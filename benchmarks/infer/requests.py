"""Benchmark of inference: latency of models for several batch sizes and numbers of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from benchmarks.pytorch.candidates import COMPILED, EAGER, TIMM_MODELS
from ppcls.bench.measure.runner import Candidate, Effort
from ppcls.bench.results.schema import Label
from ppcls.deploy.models.description import ModelDescription
from ppcls.deploy.models.engine import Engine, choose_engine
from ppcls.deploy.models.source import ModelSource, find_source
from ppcls.engine.autotune.processes import MeasuringProcess, worker_command
from ppcls.errors import UserError

_ENGINES: dict[Engine, str] = {
    "paddle": "Paddle Inference",
    "onnxruntime": "onnxruntime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
}
_WORKER = Path(__file__).resolve().parents[1] / "worker.py"
_ROOT = Path(__file__).resolve().parents[2]
_INSPECT_SECONDS = 300.0  # timeout of the process that inspects the machine
_FEW = 100  # with fewer requests, the 99th percentile is nearly the time of the slowest request

Models = Sequence[tuple[Path, ModelSource]]


def find_models(paths: Sequence[Path], overrides: Sequence[str], *, trust: bool = False) -> Models:
    """Returns the models at the given paths.

    Raises:
        UserError: A model is missing, or two models have the same name and engine.
    """
    sources = [(path, find_source(path, overrides, trust=trust)) for path in paths]
    names = [
        (source.description.Global.model_name, _engine(source), _image(source.description))
        for _, source in sources
    ]
    for name, engine, image in names:
        if names.count((name, engine, image)) > 1:
            raise UserError(
                f"--model: two models have the name {name} and the engine {engine} for images {image}; "
                "measure them separately"
            )
    return sources


def _engine(source: ModelSource) -> str:
    if source.config is not None:
        return "Paddle, as trained"
    engine = "Paddle, exported for ppcls" if source.builds_network else _ENGINES[choose_engine(source)]
    precision = source.description.precision
    return engine if precision == "float32" else f"{engine} {precision}"


def _image(description: ModelDescription) -> str:
    """Returns the shape of the model's images, and their dtype if it is not float32."""
    tensor = description.Input
    shape = "x".join(map(str, tensor.shape[1:]))
    return shape if tensor.dtype == "float32" else f"{shape} {tensor.dtype}"


def inspect_machine(path: Path, overrides: Sequence[str], *, trust: bool = False) -> dict[str, Any]:
    """Returns the device and machine on which a model runs; see `benchmarks.infer.predictions.inspect`.

    Raises:
        UserError: The model cannot run here.
    """
    task = {"model": str(path), "overrides": list(overrides), "trust": trust}
    return MeasuringProcess(worker_command(_WORKER, "device"), task, _INSPECT_SECONDS).run()


def make_candidates(
    models: Models,
    device: Literal["cpu", "gpu"],
    axes: tuple[Sequence[int], Sequence[int]],
    overrides: Sequence[str],
    effort: Effort,
) -> list[Candidate[str]]:
    """Returns one candidate per model, number of threads and batch size. Each measures in a new process."""
    candidates = []
    for (path, source), threads, batch_size in product(models, *map(dict.fromkeys, axes)):
        description = source.description_on(device)
        labels: dict[str, Label] = {
            "model": description.Global.model_name,
            "image": _image(description),
            "run by": _engine(source),
            "device": device,
            "threads": threads,
            "batch size": batch_size,
        }
        plural = "s" if threads > 1 else ""
        name = f"{labels['model']} by {labels['run by']}, {device}, {threads} thread{plural}"
        if description.Input.dtype == "uint8":
            name += ", 8-bit images"
        task = {
            "model": str(path),
            "overrides": [*overrides, f"Global.device={device}", f"Global.cpu_threads={threads}"],
            "trust": source.trust,
            "batch_size": batch_size,
            "warm_up": effort.warm_up,
            "requests": effort.counted,
            "seconds": effort.seconds,
        }
        process = MeasuringProcess(worker_command(_WORKER, "infer"), task, effort.timeout)
        candidates.append(Candidate(str(path), f"{name}, batch {batch_size}", process.run, labels))
    return candidates


def pytorch_requests(
    python: str,
    models: Models,
    device: Literal["cpu", "gpu"],
    axes: tuple[Sequence[int], Sequence[int]],
    effort: Effort,
) -> list[Candidate[str]]:
    """Returns candidates that measure timm's networks of the same architectures, eager and compiled.

    Args:
        python: Python interpreter with PyTorch and timm.
        models: Models of ppcls. Each architecture is measured once.
        device: Device to run on.
        axes: Numbers of threads and batch sizes.
        effort: Number and duration of the measurements.

    Raises:
        UserError: timm has no network for any of the models, as far as ppcls knows.
    """
    described = {source.description.Global.model_name: source.description for _, source in models}
    known = {name: description for name, description in described.items() if name in TIMM_MODELS}
    if not known:
        raise UserError(
            f"--torch: expected a model among {', '.join(TIMM_MODELS)}, got {', '.join(described)}; "
            "remove --torch"
        )
    candidates = []
    threads_and_batches = list(product(*map(dict.fromkeys, axes)))
    for name, (threads, batch_size), framework in product(known, threads_and_batches, (EAGER, COMPILED)):
        height, width = known[name].image_size
        labels: dict[str, Label] = {
            "model": name,
            "image": f"{height}x{width}x3 uint8" if device == "gpu" else f"3x{height}x{width}",
            "run by": f"{framework}, {'float16' if device == 'gpu' else 'float32'}",
            "device": device,
            "threads": threads,
            "batch size": batch_size,
        }
        task = {
            "timm": TIMM_MODELS[name],
            "classes": known[name].width,
            "size": (height, width),
            "batch_size": batch_size,
            "device": device,
            "threads": threads,
            "compile": framework == COMPILED,
            "warm_up": effort.warm_up,
            "requests": effort.counted,
            "seconds": effort.seconds,
        }
        # A module: the folder of a script is in the path, and the module of this name in this folder would
        # hide the package requests.
        command = [python, "-m", "benchmarks.infer.torch_requests"]
        process = MeasuringProcess(command, task, effort.timeout, {"PYTHONPATH": str(_ROOT)})
        plural = "s" if threads > 1 else ""
        text = f"{name} by {labels['run by']}, {device}, {threads} thread{plural}, batch {batch_size}"
        candidates.append(Candidate(f"{framework}: {name}", text, process.run, labels))
    return candidates


def find_latencies(measured: Sequence[Candidate[str]]) -> Iterator[str]:
    """Yields conclusions about latencies, one sentence each."""
    done = [row for row in measured if row.samples]
    if not done:
        return
    fastest = min(done, key=lambda row: row.metrics()["p50"].median)
    yield f"Lowest latency: {fastest.name}: {fastest.metrics()['p50'].median:.4g} ms."
    few = min(sample["requests"] for row in done for sample in row.samples)
    if few < _FEW:
        yield (
            f"Some rounds had only {few} requests. With fewer than {_FEW} requests, p99 is nearly the time "
            "of the slowest one; increase --seconds or --requests."
        )

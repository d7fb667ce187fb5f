"""Inference speed: how long a model takes to answer, by batch size and threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from ppcls.bench.measure.processes import MeasuringProcess, worker_command
from ppcls.bench.measure.runner import Candidate, Effort, Measurements
from ppcls.bench.results.schema import ChartSpec, Label, Quantity, ResultRow
from ppcls.deploy.models.openvino import uses_openvino
from ppcls.deploy.models.source import ModelSource, find_source
from ppcls.errors import UserError

EFFORT = Effort(warm_up=10, timeout=600.0)
_INSPECT_SECONDS = 300.0  # timeout of looking at the machine
_FEW = 100  # requests below which the 99th percentile is hardly more than the slowest request
_PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True)
class Request:
    """One way to query a model.

    Attributes:
        path: Path of the model.
        model: Name of the model.
        image: Shape of its input, such as ``3x224x224``.
        run_by: Engine that runs it.
        device: ``cpu`` or ``gpu``.
        threads: CPU threads of the model.
        batch_size: Images per request.
    """

    path: Path
    model: str
    image: str
    run_by: str
    device: str
    threads: int
    batch_size: int

    def labels(self) -> dict[str, Label]:
        """Returns the fields by name, but not the path, which may differ elsewhere."""
        names = [field.name for field in fields(self) if field.name != "path"]
        return {name.replace("_", " "): getattr(self, name) for name in names}

    def describe(self) -> str:
        """Returns one line for people."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.model} by {self.run_by}, {self.device}, {threads}, batch {self.batch_size}"


def find_models(paths: Sequence[Path], overrides: Sequence[str]) -> list[tuple[Path, ModelSource]]:
    """Returns the models at some paths.

    Raises:
        UserError: A model is missing, or two models have the same name and engine.
    """
    sources = [(path, find_source(path, overrides)) for path in paths]
    names = [(source.description.Global.model_name, _engine(source)) for _, source in sources]
    for name, engine in names:
        if names.count((name, engine)) > 1:
            raise UserError(
                f"--model: two models are named {name} and run by {engine}; measure one at a time"
            )
    return sources


def _engine(source: ModelSource) -> str:
    if source.config is not None:
        return "Paddle, as trained"
    engine, precision = "Paddle Inference", source.description.precision
    if not source.needs_paddle:
        engine = "OpenVINO" if uses_openvino(source) else "onnxruntime"
    return engine if precision == "float32" else f"{engine} {precision}"


def inspect_machine(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns where a model runs; see `ppcls.bench.infer.worker.inspect`.

    Raises:
        UserError: The model cannot run here.
    """
    task = {"model": str(path), "overrides": list(overrides)}
    return MeasuringProcess(worker_command("device"), task, _INSPECT_SECONDS).run()


def make_requests(
    models: Sequence[tuple[Path, ModelSource]],
    device: str,
    threads: Sequence[int],
    batch_sizes: Sequence[int],
) -> list[Request]:
    """Returns all combinations of models, threads and batch sizes."""
    return [
        Request(
            path,
            source.description.Global.model_name,
            "x".join(map(str, source.description.Input.shape[1:])),
            _engine(source),
            device,
            count,
            batch_size,
        )
        for path, source in models
        for count in dict.fromkeys(threads)
        for batch_size in dict.fromkeys(batch_sizes)
    ]


def make_candidates(
    requests: Sequence[Request], overrides: Sequence[str], effort: Effort
) -> list[Candidate[Request]]:
    """Returns candidates that measure each request in a process of its own."""
    return [
        Candidate(request, request.describe(), partial(_measure, request, overrides, effort))
        for request in requests
    ]


def _measure(request: Request, overrides: Sequence[str], effort: Effort) -> dict[str, Any]:
    placed = [f"Global.device={request.device}", f"Global.cpu_threads={request.threads}"]
    task = {
        "model": str(request.path),
        "overrides": [*overrides, *placed],
        "batch_size": request.batch_size,
        "warm_up": effort.warm_up,
        "requests": effort.counted,
        "seconds": effort.seconds,
    }
    return MeasuringProcess(worker_command("infer"), task, effort.timeout).run()


def make_rows(measured: Sequence[Measurements[Request]]) -> list[ResultRow]:
    """Returns one row per request; the note of a request that could not be measured has the reason."""
    return [
        ResultRow(measurement.key.labels(), _metrics(measurement), measurement.note)
        for measurement in measured
    ]


def _metrics(measurements: Measurements[Request]) -> dict[str, Quantity]:
    if not measurements.samples:
        return {}
    return {
        **{name: measurements.quantity(name, "ms", "less", 1e3) for name in _PERCENTILES},
        "images/s": measurements.rate(),
        "CPU load": measurements.quantity("cpu_cores", "cores", "neither"),
        "host memory": measurements.quantity("host_memory", "MiB", "less", 1.0),
    }


def make_charts(measured: Sequence[Measurements[Request]]) -> list[ChartSpec]:
    """Returns charts of throughput and latency by batch size."""
    labels = [measurement.key.labels() for measurement in measured]
    series = tuple(
        name for name in ("model", "run by", "threads") if len({label[name] for label in labels}) > 1
    )
    charts = [("Throughput", "images/s"), ("Median latency", "p50"), ("99th percentile of latency", "p99")]
    return [ChartSpec(title, metric, "batch size", series) for title, metric in charts]


def find_conclusions(measured: Sequence[Measurements[Request]]) -> Iterator[str]:
    """Yields the conclusions, one sentence each."""
    done = [row for row in measured if row.samples]
    if not done:
        yield "Nothing could be measured; each row has the reason."
        return
    fastest = min(done, key=lambda row: _metrics(row)["p50"].median)
    yield f"Lowest latency: {fastest.name}: {_metrics(fastest)['p50'].median:.4g} ms."
    most = max(done, key=lambda row: row.rate().median)
    yield f"Highest throughput: {most.name}: {most.rate().median:.4g} images/s."
    few = min(sample["requests"] for row in done for sample in row.samples)
    if few < _FEW:
        yield (
            f"Some rounds had only {few} requests. With fewer than {_FEW}, p99 is hardly more than the "
            "slowest request; raise --seconds or --requests."
        )

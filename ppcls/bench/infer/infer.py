"""How long a model takes to answer, and how many images it answers for, by batch size and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppcls.bench.measure.children import Outcome, measure_apart, paddle_command
from ppcls.bench.measure.turns import Measured
from ppcls.bench.results.results import Chart, Label, Metric, Row
from ppcls.deploy.models.source import Source, find_source
from ppcls.errors import UserError

_LOOK_SECONDS = 300.0  # the longest for a look at the machine
_FEW = 100  # requests, under which a 99th percentile is hardly more than the slowest one


@dataclass(frozen=True)
class Request:
    """One way of asking a model.

    Attributes:
        path: Of the model.
        model: Its name.
        image: The shape of its input, such as ``3x224x224``.
        by: What runs it.
        device: ``cpu`` or ``gpu``.
        threads: CPU threads of the model.
        batch_size: Images of a request.
    """

    path: Path
    model: str
    image: str
    by: str
    device: str
    threads: int
    batch_size: int

    def labels(self) -> dict[str, Label]:
        """Returns what tells it apart in results; not the path, which may be another elsewhere."""
        return {
            "model": self.model,
            "image": self.image,
            "run by": self.by,
            "device": self.device,
            "threads": self.threads,
            "batch size": self.batch_size,
        }

    def describe(self) -> str:
        """Returns a line for people."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.model} by {self.by}, {self.device}, {threads}, batch {self.batch_size}"


@dataclass(frozen=True)
class Length:
    """How long to measure.

    Attributes:
        rounds: Times that each request is measured, each time by a new process.
        warm_up: Requests that are not counted.
        requests: Counted; None for as many as ``seconds`` take.
        seconds: To measure for.
        timeout: Seconds after which a measurement is ended, start included.
    """

    rounds: int = 3
    warm_up: int = 10
    requests: int | None = None
    seconds: float = 5.0
    timeout: float = 600.0


def find_models(paths: Sequence[Path], overrides: Sequence[str]) -> list[tuple[Path, Source]]:
    """Returns the models that paths mean.

    Raises:
        UserError: There is no such model, or two of the same name would not be told apart.
    """
    found = [(path, find_source(path, overrides)) for path in paths]
    names = [(_name(source), _by(source)) for _, source in found]
    for name, by in names:
        if names.count((name, by)) > 1:
            raise UserError(f"--model: two models are called {name} and run by {by}; measure one at a time")
    return found


def _name(source: Source) -> str:
    return source.description.Global.model_name


def _image(source: Source) -> str:
    return "x".join(map(str, source.description.Input.shape[1:]))


def _by(source: Source) -> str:
    if not source.needs_paddle:
        return "onnxruntime"
    return "Paddle Inference" if source.config is None else "Paddle, as trained"


def look_at(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns where a model runs; see `ppcls.bench.infer.worker.look`.

    Raises:
        UserError: Nowhere.
    """
    task = {"model": str(path), "overrides": list(overrides)}
    outcome = measure_apart(paddle_command("device"), task, {}, _LOOK_SECONDS)
    if outcome.found is None:
        raise UserError(outcome.reason + (f"\n{outcome.log}" if outcome.log else ""))
    return outcome.found


def requests_of(
    models: Sequence[tuple[Path, Source]], device: str, threads: Sequence[int], batch_sizes: Sequence[int]
) -> list[Request]:
    """Returns all combinations."""
    return [
        Request(path, _name(source), _image(source), _by(source), device, count, batch_size)
        for path, source in models
        for count in dict.fromkeys(threads)
        for batch_size in dict.fromkeys(batch_sizes)
    ]


def runner(overrides: Sequence[str], length: Length) -> Callable[[Request], Outcome]:
    """Returns what measures one request's way once."""

    def run(request: Request) -> Outcome:
        task = {
            "model": str(request.path),
            "overrides": [
                *overrides,
                f"Global.device={request.device}",
                f"Global.cpu_threads={request.threads}",
            ],
            "batch_size": request.batch_size,
            "warm_up": length.warm_up,
            "requests": length.requests,
            "seconds": length.seconds,
        }
        return measure_apart(paddle_command("infer"), task, {}, length.timeout)

    return run


def rows_of(measured: Sequence[Measured[Request]]) -> list[Row]:
    """Returns a row for each request; one that could not be measured says why in its note."""
    return [Row(each.contender.labels(), _metrics(each.rounds), each.note) for each in measured]


def _metrics(rounds: Sequence[dict[str, Any]]) -> dict[str, Metric]:
    if not rounds:
        return {}
    metrics = {
        name: Metric(tuple(1e3 * each[name] for each in rounds), "ms", "less") for name in _PERCENTILES
    }
    metrics["images/s"] = Metric(tuple(each["images_per_second"] for each in rounds), "images/s")
    metrics["CPU load"] = Metric(tuple(each["cpu_cores"] for each in rounds), "cores", "neither")
    metrics["host memory"] = Metric(tuple(float(each["host_memory"]) for each in rounds), "MiB", "less")
    return metrics


_PERCENTILES = ("p50", "p90", "p99")


def charts_of(measured: Sequence[Measured[Request]]) -> list[Chart]:
    """Returns throughput and latency by batch size."""
    several = [
        name
        for name in ("model", "run by", "threads")
        if len({each.contender.labels()[name] for each in measured}) > 1
    ]
    charts = [("Throughput", "images/s"), ("Median latency", "p50"), ("99th percentile of latency", "p99")]
    return [Chart(title, metric, "batch size", tuple(several)) for title, metric in charts]


def findings_of(measured: Sequence[Measured[Request]]) -> Iterator[str]:
    """Yields what is to be known of the figures, a sentence each."""
    done = [each for each in measured if each.rounds]
    if not done:
        yield "Nothing could be measured; each row says why."
        return
    quickest = min(done, key=lambda each: _metrics(each.rounds)["p50"].median)
    yield f"Quickest answer: {quickest.contender.describe()}: {_figure(quickest, 'p50')}."
    most = max(done, key=lambda each: _metrics(each.rounds)["images/s"].median)
    yield f"Most images: {most.contender.describe()}: {_figure(most, 'images/s')}."
    few = min(one["requests"] for each in done for one in each.rounds)
    if few < _FEW:
        yield (
            f"Some rounds had {few} requests: with fewer than {_FEW}, p99 is hardly more than the slowest "
            "one; raise --seconds or --requests."
        )


def _figure(measured: Measured[Request], name: str) -> str:
    metric = _metrics(measured.rounds)[name]
    return f"{metric.median:.4g} {metric.unit}"

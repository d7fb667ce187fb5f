"""Measures the predictions of a model in this process."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.latency import latency_sample
from ppcls.bench.measure.usage import UsageMeter
from ppcls.deploy.models.source import ModelSource, find_source
from ppcls.deploy.predictor import Predictor, join
from ppcls.errors import UserError
from ppcls.runtime import start as runtime


def inspect(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``device``, ``cores``, ``machine`` and ``versions`` with which a model runs.

    Args:
        task: Dict with ``model``, ``overrides`` and ``trust``.

    Raises:
        UserError: The model or its device is missing.
    """
    run = runtime.start(_find(task).run)
    from ppcls.report.summary.environment import read_hardware, read_versions

    return {
        "device": run.device,
        "cores": run.cores,
        "machine": read_hardware(run),
        "versions": read_versions(),
    }


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs one request after another, and measures each from images to scores in host memory.

    Args:
        task: Dict with ``model``, ``overrides``, ``trust``, ``batch_size``, ``warm_up`` (number of requests
            before the measurement), ``requests`` (number of measured requests; None to measure for
            ``seconds``) and ``seconds``.

    Returns:
        A sample with ``p50``, ``p90`` and ``p99`` in seconds, ``images_per_second``, ``cpu_cores``,
        ``host_memory`` in MiB and the number of ``requests``.

    Raises:
        UserError: The model cannot be loaded or run, or the device does not compute in its precision.
    """
    source = _find(task)
    predictor = Predictor(source)
    if source.config is None and f" {source.description.precision})" not in predictor.model.engine:
        raise UserError(
            f"{source.file}: expected a device that computes in {source.description.precision}, "
            f"found {predictor.model.engine}"
        )
    random = predictor.description.random_images(task["batch_size"], np.random.default_rng(0))
    images = join(list(random), predictor.model)  # in page-locked memory for a GPU, as in PyTorch's requests
    for _ in range(task["warm_up"]):
        predictor.model.run(images)
    latencies: list[float] = []
    meter = UsageMeter()
    meter.start()
    began = time.perf_counter()
    while len(latencies) < (task["requests"] or 1) or (
        task["requests"] is None and time.perf_counter() - began < task["seconds"]
    ):
        sent = time.perf_counter()
        predictor.model.run(images)
        latencies.append(time.perf_counter() - sent)
    wall = time.perf_counter() - began
    usage = meter.stop()
    return latency_sample(latencies, wall, task["batch_size"], (50, 90, 99)) | {
        "cpu_cores": usage["cpu_seconds"] / wall,
        "host_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def _find(task: Mapping[str, Any]) -> ModelSource:
    return find_source(Path(task["model"]), task["overrides"], trust=task["trust"])

"""Samples of requests: latencies and images per second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppcls.bench.measure.runner import RATE
from ppcls.engine.autotune.processes import Sample


def latency_sample(
    latencies: Sequence[float], seconds: float, images: int, percentiles: Sequence[int]
) -> Sample:
    """Returns a sample: latency percentiles in seconds, images per second, and the number of requests.

    Args:
        latencies: Duration of each request in seconds.
        seconds: Duration of the measurement.
        images: Number of images per request.
        percentiles: Percentiles to compute, such as 50 for ``p50``.
    """
    values = np.percentile(latencies, percentiles).tolist()
    named = {f"p{percent}": value for percent, value in zip(percentiles, values, strict=True)}
    return {**named, RATE: images * len(latencies) / seconds, "requests": len(latencies)}

"""Metrics of the server for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ppcls.serve.workers import METRICS_FOLDER

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_MODEL = ("model",)


class ServerMetrics:
    """Metrics of one server. The metrics of a model have the label ``model``.

    Attributes:
        requests: Number of requests by status.
        seconds: Time in seconds from the headers of a request to its response.
        images: Number of images with a prediction.
        preparation: Time in seconds to decode and transform an image.
        queue: Time in seconds that an image waits for its batch to start.
        batch: Number of images in a batch.
        inference: Time in seconds that the model takes for a batch.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def histogram(
            name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = _MODEL
        ) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        requests = "Number of requests for predictions, by status."
        self.requests = Counter("ppcls_requests", requests, ["status"], registry=registry)
        self.seconds = histogram(
            "ppcls_request_seconds", "Time to answer a request in seconds.", _SECONDS, ()
        )
        self.images = Counter(
            "ppcls_images", "Number of images with a prediction.", _MODEL, registry=registry
        )
        self.preparation = histogram(
            "ppcls_preparation_seconds", "Time to decode and transform an image in seconds.", _SECONDS
        )
        queue = "Time that an image waits for its batch to start in seconds."
        self.queue = histogram("ppcls_queue_seconds", queue, _SECONDS)
        self.batch = histogram("ppcls_batch_images", "Number of images per batch.", _SIZES)
        self.inference = histogram(
            "ppcls_model_seconds", "Time that the model takes for a batch in seconds.", _SECONDS
        )
        in_work = "Number of images that were received and are not answered yet."
        self._in_work = Gauge(
            "ppcls_images_in_work", in_work, _MODEL, registry=registry, multiprocess_mode="livesum"
        )

    def add_model(self, name: str) -> None:
        """Adds a model with no images in progress."""
        self._in_work.labels(name).set(0)

    @contextmanager
    def count_in_work(self, name: str, images: int) -> Iterator[None]:
        """Counts images of a model as in progress until the end of the ``with`` block."""
        gauge = self._in_work.labels(name)
        gauge.inc(images)
        try:
            yield
        finally:
            gauge.dec(images)

    def remove_model(self, name: str) -> None:
        """Removes the metrics of a model."""
        for metric in (
            self.images,
            self.preparation,
            self.queue,
            self.batch,
            self.inference,
            self._in_work,
        ):
            metric.remove(name)

    def as_text(self) -> bytes:
        """Returns all metrics, summed over the worker processes, in the text format 0.0.4 of Prometheus."""
        if METRICS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

"""Predicts the images of several requests: threads prepare them, and one model runs them in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ppcls.deploy.models.source import ModelSource
from ppcls.deploy.predictor import Predictor
from ppcls.deploy.results import Prediction
from ppcls.serve.batcher import Batcher
from ppcls.serve.limits import AdmissionLimit, RequestError

Array = NDArray[Any]
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ANY_LENGTH = 224  # of the first image of a model that accepts any size
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class BatchingOptions:
    """How requests share the model.

    Attributes:
        max_batch: Maximum number of images of a batch.
        max_wait: Seconds that an image waits for others to join its batch.
        max_waiting: Maximum number of images of all requests that wait or are being predicted. Further
            requests are rejected.
    """

    max_batch: int
    max_wait: float
    max_waiting: int


class ServerMetrics:
    """Metrics of one server for Prometheus.

    Args:
        images: Limit whose use is reported.

    Attributes:
        requests: Number of requests by status.
        images: Number of answered images.
        seconds: Time from the headers of a request to its answer.
        batch: Number of images of a batch.
        model_seconds: Time of a batch in the model.
    """

    def __init__(self, images: AdmissionLimit) -> None:
        self._registry = registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        requests = "Requests for predictions, by status."
        self.requests = Counter("ppcls_requests", requests, ["status"], registry=registry)
        self.images = Counter("ppcls_images", "Images predicted.", registry=registry)
        self.seconds = histogram("ppcls_request_seconds", "Time to answer a request.", _SECONDS)
        self.batch = histogram("ppcls_batch_images", "Images per batch.", _SIZES)
        self.model_seconds = histogram("ppcls_model_seconds", "Time of a batch in the model.", _SECONDS)
        in_work = Gauge("ppcls_images_in_work", "Images received and not answered yet.", registry=registry)
        in_work.set_function(lambda: images.used)

    def as_text(self) -> bytes:
        """Returns all metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)


def load(source: ModelSource, batch_size: int) -> Predictor:
    """Loads a model and runs it once, because the first batch is slow and reveals errors.

    Args:
        source: The model.
        batch_size: Maximum number of images of a batch.

    Raises:
        UserError: If the model cannot be loaded.
    """
    predictor = Predictor(source)
    expected = predictor.description.Input
    shape = [length if length > 0 else _ANY_LENGTH for length in expected.shape[1:]]
    for count in {1, batch_size}:
        predictor.model.run(np.zeros((count, *shape), expected.dtype))
    return predictor


class InferenceService:
    """A model that several requests share, used in one event loop between `start` and `stop`.

    Args:
        predictor: The model.
        worker: Pool of one thread, the only one that calls the model.
        batching: How requests share the model.

    Attributes:
        predictor: The model.
        metrics: Metrics of the server.
    """

    def __init__(self, predictor: Predictor, worker: ThreadPoolExecutor, batching: BatchingOptions) -> None:
        self.predictor = predictor
        self._images = AdmissionLimit(batching.max_waiting, "images")
        self.metrics = ServerMetrics(self._images)
        self._worker = worker
        self._preparers = ThreadPoolExecutor(predictor.cores, "prepare")
        self._batcher = Batcher[Array, Array](self._run, batching.max_batch, batching.max_wait)

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self._batcher.running

    def start(self) -> None:
        """Starts to answer requests."""
        self._batcher.start()

    async def stop(self) -> None:
        """Stops, cancels the requests that are not answered yet, and waits for all threads."""
        await self._batcher.stop()
        for threads in (self._preparers, self._worker):
            threads.shutdown(cancel_futures=True)

    async def predict(self, images: Sequence[bytes], topk: int | None = None) -> list[Prediction]:
        """Returns one answer per image, in their order.

        Args:
            images: Bytes of image files.
            topk: See `Predictor.interpret`.

        Raises:
            BusyError: If too many images are in work.
            RequestError: If images cannot be decoded. It names all of them.
            UserError: If an output of the model is not finite.
        """
        with self._images.acquire(len(images)):
            prepared = await asyncio.gather(*map(self._prepare, images))
            bad = {index: str(item) for index, item in enumerate(prepared) if isinstance(item, ValueError)}
            if bad:
                named = [f"image {index}: {reason}" for index, reason in bad.items()]
                raise RequestError(422, "; ".join(named if len(images) > 1 else bad.values()), bad)
            arrays = [item for item in prepared if not isinstance(item, ValueError)]
            outputs = await asyncio.gather(*map(self._batcher.put, arrays))
            self.metrics.images.inc(len(outputs))
            return [self.predictor.interpret(output, topk) for output in outputs]

    async def _prepare(self, image: bytes) -> Array | ValueError:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._preparers, self.predictor.prepare, image)
        except ValueError as error:
            return error

    async def _run(self, batch: list[Array]) -> Sequence[Array]:
        start = time.perf_counter()
        outputs = await asyncio.get_running_loop().run_in_executor(self._worker, self.predictor.run, batch)
        self.metrics.batch.observe(len(batch))
        self.metrics.model_seconds.observe(time.perf_counter() - start)
        return outputs

"""Runs one model on the images of several requests, in batches."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.models.source import ModelSource, can_explain
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.postprocess.results import Prediction
from ppcls.serve.batcher import Batcher
from ppcls.serve.limits import AdmissionLimit, RequestError
from ppcls.serve.metrics import ServerMetrics
from ppcls.serve.pools import TimedPool
from ppcls.serve.preparation import Preparation

if TYPE_CHECKING:  # imports Paddle
    from ppcls.engine.evaluation.heat_map import HeatMaps

Array = NDArray[Any]
_P = ParamSpec("_P")
_T = TypeVar("_T")
_ANY_LENGTH = 224  # side of the first images for a model that accepts any size
_WARM_UP_SECONDS = 10.0  # limits the start with a slow model, whose later sizes are then slow once
_DRAIN_INTERVAL = 0.02  # seconds


@dataclass(frozen=True)
class BatchingOptions:
    """Options for batches of images from several requests.

    Attributes:
        max_batch: Maximum number of images in a batch.
        max_wait: Maximum time in seconds that a batch waits for images that are being prepared.
        max_waiting: Maximum number of images of all requests that wait or are being predicted. Further
            requests are rejected.
        timeout: Time in seconds after which the model, or the decoder of a small image, hangs. Nothing can
            stop it, so the server is not ready.
    """

    max_batch: int
    max_wait: float
    max_waiting: int
    timeout: float = math.inf


@dataclass(frozen=True, eq=False)
class _Item:
    """Prepared image that waits for a batch.

    Attributes:
        image: Input of the model.
        arrived: Time in seconds at which the image was added to the queue.
    """

    image: Array
    arrived: float = field(default_factory=time.perf_counter)


def load(source: ModelSource, max_batch: int) -> Predictor:
    """Loads a model, runs it with batches of several sizes, and returns it.

    The first batch of each size is slow, and can fail. Batches of 1 and of ``max_batch`` images are always
    run. For up to ten seconds, they run twice more, because a CUDA graph is captured in the third run, and
    then the other sizes run.

    Args:
        source: Model to load.
        max_batch: Maximum number of images in a batch.

    Raises:
        UserError: The model cannot be loaded or run, or its files changed meanwhile.
    """
    predictor = build(source)
    for run in warm_up(predictor, max_batch):
        run()
    predictor.source.check_unchanged()
    return predictor


def build(source: ModelSource) -> Predictor:
    """Returns a model that has not been run, see `load`."""
    # A link such as best_model may point to another checkpoint when heat maps are loaded later.
    return Predictor(source.without_links())


def warm_up(predictor: Predictor, max_batch: int) -> Iterator[Callable[[], None]]:
    """Yields functions that run one batch each, see `load`. They may raise a `UserError`."""
    expected = predictor.description.Input
    shape = [length if length > 0 else _ANY_LENGTH for length in expected.shape[1:]]

    def run(count: int) -> None:
        predictor.check_shape(predictor.model.run(np.zeros((count, *shape), expected.dtype)))

    first = (1, max_batch)
    end = time.perf_counter() + _WARM_UP_SECONDS
    for position, count in enumerate([*3 * first, *range(2, max_batch)]):
        if position < len(first) or time.perf_counter() < end:
            yield partial(run, count)


class InferenceService:
    """A model that several requests share. It is used in one event loop, between `start` and `stop`.

    Args:
        name: Name of the model in requests and metrics.
        predictor: Loaded model.
        worker: Pool of one thread, in which the model runs.
        batching: Options for batches.
        metrics: Metrics of the server.

    Attributes:
        name: Name of the model.
        predictor: Loaded model.
    """

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        worker: TimedPool,
        batching: BatchingOptions,
        metrics: ServerMetrics,
    ) -> None:
        self.name = name
        self.predictor = predictor
        self._images = AdmissionLimit(batching.max_waiting, "images")
        self._metrics = metrics
        self._timeout = batching.timeout
        self._worker = worker
        self._preparation = Preparation(predictor.chain, predictor.cores)
        self._heat_maps: HeatMaps | None = None  # loaded at the first request for a heat map
        self._batcher = Batcher[_Item, Array](self._run, batching.max_batch, batching.max_wait)

    @property
    def ready(self) -> bool:
        """Whether the model accepts requests, and neither its thread nor a decoder hangs."""
        longest = max(self._worker.longest, self._preparation.longest)
        return self._batcher.running and self._preparation.ready and longest < self._timeout

    @property
    def explains(self) -> bool:
        """Whether heat maps of the model can be computed."""
        return can_explain(self.predictor.source)

    def start(self) -> None:
        """Starts to process requests."""
        self._metrics.add_model(self.name)
        self._batcher.start()

    async def drain(self) -> None:
        """Waits until all accepted requests are answered."""
        while self._images.used:
            await asyncio.sleep(_DRAIN_INTERVAL)

    async def stop(self) -> None:
        """Cancels all unanswered requests, and waits for the threads and processes that prepare images."""
        await self._batcher.stop()
        self._preparation.stop()

    async def predict(
        self, images: Sequence[bytes], topk: int | None = None, client: str = ""
    ) -> list[Prediction]:
        """Returns one prediction per image, in order.

        Args:
            images: Bytes of image files.
            topk: See `Predictor.interpret`.
            client: Address of the client, which has a share of the server.

        Raises:
            BusyError: Too many images are in progress.
            RequestError: Some images cannot be decoded. The error lists all of them.
            UserError: An output of the model is not finite.
        """
        count = len(images)
        with self._images.acquire(count, client), self._metrics.count_in_work(self.name, count):
            outputs = await self._prepare_and_run(images, client)
            bad = {index: str(item) for index, item in enumerate(outputs) if isinstance(item, ValueError)}
            if bad:
                named = [f"image {index}: {reason}" for index, reason in bad.items()]
                raise RequestError(422, "; ".join(named if len(images) > 1 else bad.values()), bad)
            self._metrics.images.labels(self.name).inc(len(outputs))
            return [self.predictor.interpret(row, topk) for row in outputs if isinstance(row, np.ndarray)]

    async def explain(self, image: bytes, class_id: int, client: str = "") -> bytes:
        """Returns the image with the heat map of a class over it, as the bytes of a PNG file.

        Args:
            image: Bytes of an image file.
            class_id: Number of the class.
            client: Address of the client, which has a share of the server.

        Raises:
            BusyError: Too many images are in progress.
            RequestError: The image cannot be decoded, or is too large.
            UserError: The model has no feature map.
        """
        from ppcls.deploy.heat_map import encode_png

        with self._images.acquire(1, client), self._metrics.count_in_work(self.name, 1):
            heat_maps = self._heat_maps
            if heat_maps is None:
                heat_maps = await self._in_worker(self._load_heat_maps)
            try:
                # Not in the thread of the model: decoding takes long, and cannot be stopped in a thread.
                prepared = await self._preparation.prepare(image, client, heat_maps.chain)
                pixels = await self._preparation.prepare(image, client, heat_maps.pixel_chain)
            except ValueError as error:
                raise RequestError(422, str(error), {0: str(error)}) from None
            batch = np.ascontiguousarray(prepared[None], np.float32)
            heat = await self._in_worker(heat_maps.compute, batch, class_id)
            return await asyncio.to_thread(lambda: encode_png(heat_maps.blend(pixels, heat)))

    async def _in_worker(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Returns the result of a function that is called in the thread of the model."""
        call = partial(function, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, call)
        except UserError as error:  # clients name models, and need not know where the server keeps them
            file = self.predictor.source.file
            raise UserError(str(error).replace(str(file), self.name)) from None

    def _load_heat_maps(self) -> HeatMaps:
        from ppcls.deploy.heat_map import load_heat_maps

        if self._heat_maps is None:
            heat_maps = load_heat_maps(self.predictor.source)
            self.predictor.source.check_unchanged()
            self._heat_maps = heat_maps
        return self._heat_maps

    async def _prepare_and_run(self, images: Sequence[bytes], client: str) -> Sequence[Array | ValueError]:
        """Prepares all images, and returns the outputs of the model.

        If some images cannot be decoded, no image is predicted. The result then contains the errors of these
        images, and the other prepared images.
        """
        with self._batcher.expecting(len(images)):
            prepared = await asyncio.gather(*(self._prepare(image, client) for image in images))
            arrays = [image for image in prepared if isinstance(image, np.ndarray)]
            if len(arrays) < len(prepared):
                return prepared
            results = [self._batcher.put(_Item(array)) for array in arrays]
        return await asyncio.gather(*results)

    async def _prepare(self, image: bytes, client: str) -> Array | ValueError:
        with self._metrics.preparation.labels(self.name).time():
            try:
                return await self._preparation.prepare(image, client)
            except ValueError as error:
                return error

    async def _run(self, batch: list[_Item]) -> Sequence[Array]:
        return await self._in_worker(self._run_now, batch)

    def _run_now(self, batch: list[_Item]) -> Sequence[Array]:
        """Returns the output of the model for each prepared image."""
        metrics = self._metrics
        started = time.perf_counter()
        for item in batch:
            metrics.queue.labels(self.name).observe(started - item.arrived)
        metrics.batch.labels(self.name).observe(len(batch))
        with metrics.inference.labels(self.name).time():
            return self.predictor.run([item.image for item in batch])

"""From the bytes of images to answers: prepared by threads, predicted in batches of all requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.models.source import Source
from ppcls.deploy.predictor import Predictor
from ppcls.deploy.results import Answer
from ppcls.serve.batcher import Batcher
from ppcls.serve.figures import Figures
from ppcls.serve.room import Room, Share
from ppcls.serve.uploads import RefusedError

Array = NDArray[Any]


@dataclass(frozen=True)
class Batching:
    """How requests share the model.

    Attributes:
        max_batch: Images of a batch, at most.
        max_wait: Seconds that an image waits for others.
        max_waiting: Images in work at once, of all requests; what is more is refused.
    """

    max_batch: int
    max_wait: float
    max_waiting: int


def load(source: Source, batch_size: int) -> Predictor:
    """Loads a model, and has it predict: the first batch takes longer, and shows what is wrong.

    Args:
        source: The model.
        batch_size: Images of a batch, at most.

    Raises:
        UserError: It can't be loaded.
    """
    predictor = Predictor(source)
    shape = predictor.description.Input.shape[1:]
    for count in {1, batch_size}:
        predictor.model.run(np.zeros((count, *shape), np.float32))
    return predictor


class Service:
    """A model that several requests ask at once; to be used in one event loop, between `start` and `stop`.

    Args:
        predictor: Of the model.
        worker: One thread, which alone calls the model.
        batching: How requests share it.

    Attributes:
        predictor: Of the model.
        figures: What it counts.
    """

    def __init__(self, predictor: Predictor, worker: ThreadPoolExecutor, batching: Batching) -> None:
        self.predictor = predictor
        self._images = Room(batching.max_waiting, "images")
        self.figures = Figures(self._images)
        self._worker = worker
        self._cores = ThreadPoolExecutor(predictor.cores, "prepare")
        self._batcher = Batcher[Array, Answer](self._answer, batching.max_batch, batching.max_wait)

    def start(self) -> None:
        """Begins to work."""
        self._batcher.start()

    async def stop(self) -> None:
        """Ends."""
        await self._batcher.stop()
        self._cores.shutdown(cancel_futures=True)

    async def predict(self, images: Sequence[bytes]) -> list[Answer]:
        """Returns one answer an image, in their order.

        Raises:
            BusyError: Too many images are in work.
            RefusedError: Some are no images that the model takes; all of them are named.
            UserError: A number is not finite.
        """
        with Share(self._images) as share:
            share.take(len(images))
            prepared = await asyncio.gather(*map(self._prepare, images))
            bad = {at: str(each) for at, each in enumerate(prepared) if isinstance(each, ValueError)}
            if bad:
                named = [f"image {at}: {reason}" for at, reason in bad.items()]
                raise RefusedError(422, "; ".join(named if len(images) > 1 else bad.values()), bad)
            arrays = [each for each in prepared if not isinstance(each, ValueError)]
            answers = await asyncio.gather(*map(self._batcher.put, arrays))
            self.figures.images.inc(len(answers))
            return list(answers)

    async def _prepare(self, image: bytes) -> Array | ValueError:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._cores, self.predictor.prepare, image
            )
        except ValueError as error:
            return error

    async def _answer(self, batch: list[Array]) -> Sequence[Answer]:
        began = time.perf_counter()
        answers = await asyncio.get_running_loop().run_in_executor(self._worker, self.predictor.answer, batch)
        self.figures.batch.observe(len(batch))
        self.figures.model_seconds.observe(time.perf_counter() - began)
        return answers

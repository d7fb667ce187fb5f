"""One stage of our DALI loader alone: a pipeline of that, fed with what the stage before has made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.bench.loader.bottleneck import Stage
from ppcls.bench.loader.contender import Contender
from ppcls.bench.loader.feeds import Counts, end
from ppcls.bench.loader.subject import Subject
from ppcls.data.loaders.dali.loader import iter_batches
from ppcls.data.transforms.dali_ops import LoweringContext, lower_chain
from ppcls.data.transforms.specs import Op, RandCropImage
from ppcls.data.transforms.specs.chain import decide_chain
from ppcls.data.transforms.specs.decisions import count_decisions


class _Dali:
    """Pipelines of a contender's settings, and what they make of the batches that are held.

    Args:
        contender: Of the config's device.
        subject: The images.
        pool: Threads for what is not done by DALI's own.
    """

    def __init__(self, contender: Contender, subject: Subject, pool: ThreadPoolExecutor) -> None:
        self._subject, self._rows = subject, subject.held()
        self.settings = subject.settings(contender.workers, contender.prefetch, **contender.dali)
        self._device = "cpu" if self.settings.device_id is None else "gpu"
        self._place = LoweringContext(
            "cpu" if self.settings.device_id is None else "gpu",
            self.settings.threads,
            pool=pool,
            decoder=self.settings.decoder,
            decodes_on_gpu=self.settings.decodes_on_gpu,
        )

    def pipeline(self, *make: Callable[[], Any]) -> Pipeline:
        """Returns a pipeline of what is made in its graph, built."""
        settings = self.settings
        pipeline = Pipeline(
            batch_size=self._subject.batch_size,
            num_threads=settings.threads,
            device_id=settings.device_id,
            prefetch_queue_depth=settings.prefetch,
            exec_dynamic=settings.exec_dynamic,
        )
        with pipeline:
            pipeline.set_outputs(*(each() for each in make))
        pipeline.build()
        return pipeline

    def held(self, pipeline: Pipeline) -> list[Any]:
        """Returns what a pipeline makes of the batches that are held; they keep its memory."""
        return [pipeline.run()[0] for _ in self._rows]

    def decoded(self) -> Pipeline:
        """Returns the pipeline that decodes whole images."""
        return self.pipeline(lambda: self._lower(self._subject.ops("config")[:1], self._encoded(), None))

    def decoded_as_configured(self) -> Pipeline:
        """Returns the pipeline that decodes: of a random crop, where the loader does so, the window alone.

        Of the window a single pixel is left, for the crop's resizing is no decoding.
        """
        decoder, crop, *_ = self._subject.ops("config")
        if not self.settings.decode_window or not isinstance(crop.spec, RandCropImage):
            return self.decoded()
        pixel = replace(crop, spec=crop.spec.resized(1))
        whole = self.decoded()
        images = self.held(whole)
        end(whole)
        return self.pipeline(
            lambda: self._lower(self.settings.fuse((decoder, pixel)), self._encoded(), images)
        )

    def transformed(self) -> Pipeline:
        """Returns the pipeline of what comes behind decoding."""
        images, ops = self.held(self.decoded()), self.settings.fuse(self._subject.ops("config")[1:])
        return self.pipeline(lambda: self._lower(ops, self._again(images), images))

    def given(self) -> Pipeline:
        """Returns the pipeline that has images ready, and labels, and does nothing."""
        images = self.held(self.transformed())
        labels = [np.zeros([self._subject.batch_size, 1], np.int64)]
        return self.pipeline(lambda: self._again(images), lambda: self._labels(labels))

    def _labels(self, labels: Sequence[Any]) -> Any:
        node = _cycled(labels)
        return node if self._device == "cpu" else node.gpu()

    def _encoded(self) -> Any:
        read = self._subject.index.read
        return _cycled(
            [[np.frombuffer(read(each), np.uint8) for each in row] for row in self._rows], no_copy=True
        )

    def _again(self, images: Sequence[Any]) -> Any:
        """Returns the node of DALI's own batches, which are where the pipeline works."""
        return _cycled(images, no_copy=True, device=self._device)

    def _lower(self, ops: tuple[Op, ...], images: Any, decoded: Sequence[Any] | None) -> Any:
        """Adds a chain; what is decided in it depends on the decoded images' sides."""
        count = sum(count_decisions(op.spec) for op in ops)
        nodes: Sequence[Any] = ()
        if count:
            assert decoded is not None
            decided = [self._decide(ops, *each) for each in zip(decoded, self._rows, strict=True)]
            nodes = _cycled(decided, num_outputs=count)
        return lower_chain(ops, images, nodes, self._place)[-1]

    def _decide(self, ops: tuple[Op, ...], decoded: Any, row: list[int]) -> list[NDArray[Any]]:
        sides = np.array([shape[:2] for shape in decoded.shape()], np.int64)
        draws = np.stack([self._subject.draws(position) for position in row])
        return list(chain.from_iterable(decide_chain(ops, draws, sides)))


def _cycled(held: Sequence[Any], **how: Any) -> Any:
    """Adds the node of batches that are ready, over and over."""
    again = itertools.cycle(held)
    return fn.external_source(lambda: next(again), batch=True, **how)


def _run(make: Callable[[_Dali], Pipeline]) -> Callable[[Contender, Subject], Counts]:
    def stage(contender: Contender, subject: Subject) -> Counts:
        with ThreadPoolExecutor(contender.workers) as pool:
            pipeline = make(_Dali(contender, subject, pool))
            try:
                while True:
                    yield len(pipeline.run()[0])
            finally:
                end(pipeline)

    return stage


def _hand_over(contender: Contender, subject: Subject) -> Counts:
    with ThreadPoolExecutor(contender.workers) as pool:
        dali = _Dali(contender, subject, pool)
        pipeline = dali.given()
        batches = iter_batches(pipeline, dali.settings)
        try:
            for image, _ in batches:
                yield int(image.shape[0])
        finally:
            batches.close()
            end(pipeline)


DALI_STAGES: dict[Stage, Callable[[Contender, Subject], Counts]] = {
    "decode": _run(_Dali.decoded_as_configured),
    "transform": _run(_Dali.transformed),
    "hand-over": _hand_over,
}

"""One stage of a loader alone: reading, decoding, transforms or hand-over, with its input ready in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.bench.loader.runners import Counts, load_batches, map_in_workers, release, run_pipeline
from ppcls.bench.loader.settings import LoaderSetting, Stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.data.loaders.dali.loader import iter_batches
from ppcls.data.transforms.dali_ops import LoweringContext, lower_chain
from ppcls.data.transforms.numpy_ops import decide_and_apply, run
from ppcls.data.transforms.specs import Op, RandCropImage
from ppcls.data.transforms.specs.chain import decide_chain
from ppcls.data.transforms.specs.decisions import count_decisions

Array = NDArray[Any]


def run_stage(stage: Stage, setting: LoaderSetting, workload: LoaderWorkload) -> Counts:
    """Yields the images of each batch of one stage alone, endlessly.

    Args:
        stage: Stage of the config's chain.
        setting: Our DALI loader on the config's device, or paddle.io.
        workload: Images.
    """
    if stage == "disk":
        read = replace(setting, chain="read", backend="DALI CPU" if setting.by_dali else "paddle.io")
        yield from load_batches(read, workload)
    elif setting.backend == "paddle.io":
        yield from _run_paddle_stage(stage, setting, workload)
    else:
        with ThreadPoolExecutor(setting.workers) as pool:
            yield from _DaliStages(setting, workload, pool).run(stage)


def _run_paddle_stage(stage: Stage, setting: LoaderSetting, workload: LoaderWorkload) -> Counts:
    """Runs a stage in paddle.io's workers; only ``hand-over`` hands over whole images."""
    ops, none = workload.ops, np.zeros(0, np.float32)

    def prepare(position: int) -> Any:
        encoded, draws = workload.index.read(position), workload.draws(position)
        match stage:
            case "decode":
                return encoded
            case "transform":
                return run(ops[:1], encoded, draws), draws
        return run(ops, encoded, draws)

    def work(held: Any) -> Array:
        match stage:
            case "decode":
                return np.asarray([run(ops[:1], held, none).size])
            case "transform":
                image, draws = held
                for op in ops[1:]:
                    image = decide_and_apply(op.spec, image, draws[op.slot : op.slot + op.spec.draws])
                return np.asarray([np.ascontiguousarray(image).size])
        return np.asarray(held)

    rows = workload.held_batches()
    held = {position: prepare(position) for row in rows for position in row}
    return map_in_workers(lambda position: work(held[position]), itertools.cycle(rows), setting.workers)


class _DaliStages:
    """Pipelines of single stages, with the loader's settings, on batches held in memory.

    Args:
        setting: Our DALI loader on the config's device.
        workload: Images.
        pool: Threads for operators that are not DALI's.
    """

    def __init__(self, setting: LoaderSetting, workload: LoaderWorkload, pool: ThreadPoolExecutor) -> None:
        self._workload, self._rows = workload, workload.held_batches()
        self._settings = workload.dali_settings(setting.workers, setting.prefetch, **setting.dali)
        self._device: Literal["cpu", "gpu"] = "cpu" if self._settings.device_id is None else "gpu"
        self._place = LoweringContext(
            self._device,
            self._settings.threads,
            pool=pool,
            decoder=self._settings.decoder,
            decodes_on_gpu=self._settings.decodes_on_gpu,
        )

    def run(self, stage: Stage) -> Counts:
        """Yields the images of each batch of ``decode``, ``transform`` or ``hand-over``, endlessly."""
        if stage == "hand-over":
            pipeline = self._hand_over_pipeline()
            pipeline.build()
            batches = iter_batches(pipeline, self._settings)
            try:
                for image, _ in batches:
                    yield int(image.shape[0])
            finally:
                batches.close()
                release(pipeline)
        else:
            decode = stage == "decode"
            yield from run_pipeline(self._decode_pipeline() if decode else self._transform_pipeline())

    def _pipeline(self, *nodes: Callable[[], Any]) -> Pipeline:
        """Returns a pipeline with these outputs, not yet built."""
        pipeline = Pipeline(
            batch_size=self._workload.batch_size,
            num_threads=self._settings.threads,
            device_id=self._settings.device_id,
            prefetch_queue_depth=self._settings.prefetch,
            exec_dynamic=self._settings.exec_dynamic,
        )
        with pipeline:
            pipeline.set_outputs(*(node() for node in nodes))
        return pipeline

    def _hold(self, pipeline: Pipeline) -> list[Any]:
        """Returns the outputs for the held batches, which keep the pipeline's memory."""
        pipeline.build()
        return [pipeline.run()[0] for _ in self._rows]

    def _whole_pipeline(self) -> Pipeline:
        """Returns the pipeline that decodes whole images."""
        return self._pipeline(lambda: self._lower(self._workload.ops[:1], self._encoded(), None))

    def _decode_pipeline(self) -> Pipeline:
        """Returns the pipeline that decodes as configured: whole images, or only the window of a random crop.

        The window is reduced to a single pixel, because the resizing of the crop is not decoding.
        """
        decoder, crop, *_ = self._workload.ops
        if not self._settings.decode_window or not isinstance(crop.spec, RandCropImage):
            return self._whole_pipeline()
        pixel = replace(crop, spec=crop.spec.resized(1))
        pipeline = self._whole_pipeline()
        images = self._hold(pipeline)
        release(pipeline)
        ops = self._settings.fuse((decoder, pixel))
        return self._pipeline(lambda: self._lower(ops, self._encoded(), images))

    def _transform_pipeline(self) -> Pipeline:
        """Returns the pipeline of everything after decoding."""
        images = self._hold(self._whole_pipeline())
        ops = self._settings.fuse(self._workload.ops[1:])
        return self._pipeline(lambda: self._lower(ops, self._replay(images), images))

    def _hand_over_pipeline(self) -> Pipeline:
        """Returns the pipeline that has finished images and labels ready."""
        images = self._hold(self._transform_pipeline())
        labels = [np.zeros([self._workload.batch_size, 1], np.int64)]

        def add_labels() -> Any:
            return _cycle(labels) if self._device == "cpu" else _cycle(labels).gpu()

        return self._pipeline(lambda: self._replay(images), add_labels)

    def _encoded(self) -> Any:
        read = self._workload.index.read
        held = [[np.frombuffer(read(position), np.uint8) for position in row] for row in self._rows]
        return _cycle(held, no_copy=True)

    def _replay(self, images: Sequence[Any]) -> Any:
        """Returns a DALI node that repeats finished batches, on the pipeline's device."""
        return _cycle(images, no_copy=True, device=self._device)

    def _lower(self, ops: tuple[Op, ...], images: Any, decoded: Sequence[Any] | None) -> Any:
        """Adds a chain; its random decisions depend on the sizes of the decoded images."""
        count = sum(count_decisions(op.spec) for op in ops)
        nodes: Sequence[Any] = ()
        if count:
            assert decoded is not None
            decisions = [self._decide(ops, *image) for image in zip(decoded, self._rows, strict=True)]
            nodes = _cycle(decisions, num_outputs=count)
        return lower_chain(ops, images, nodes, self._place)[-1]

    def _decide(self, ops: tuple[Op, ...], decoded: Any, row: list[int]) -> list[Array]:
        sides = np.array([shape[:2] for shape in decoded.shape()], np.int64)
        draws = np.stack([self._workload.draws(position) for position in row])
        return list(itertools.chain.from_iterable(decide_chain(ops, draws, sides)))


def _cycle(held: Sequence[Any], **options: Any) -> Any:
    """Adds a node that yields the held batches again and again."""
    again = itertools.cycle(held)
    return fn.external_source(lambda: next(again), batch=True, **options)

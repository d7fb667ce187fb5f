"""DALI pipelines as a tutorial would write them, with nothing of ours: the ceiling of our loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nvidia.dali import Pipeline, fn, types

from ppcls.bench.timing import Epoch
from ppcls.config.sections import Split
from ppcls.data.dali_settings import resolve
from ppcls.data.file_index import FileIndex
from ppcls.data.index import Index
from ppcls.data.transforms import DecodeImage, NormalizeImage, RandCropImage, RandFlipImage
from ppcls.errors import UserError
from ppcls.runtime import Runtime

Read = Callable[[], Any]  # makes a reader's two nodes in a graph under construction: images, labels


def bare(pipeline: Pipeline, steps: int, batch_size: int) -> Epoch:
    """Returns the epoch of a pipeline that is not built yet."""
    pipeline.build()

    def epoch() -> Iterator[int]:
        for _ in range(steps):
            for output in pipeline.run():
                output.as_tensor()
            yield batch_size

    return epoch


def read_files(index: Index, *, shuffled: bool) -> Read:
    """Returns how DALI reads image files: in their order, or shuffled as a tutorial would.

    Raises:
        UserError: The images are no files.
    """
    if not isinstance(index, FileIndex):
        raise UserError(f"{index.source}: the bare pipeline is written for image files, listed or in folders")
    return lambda: fn.readers.file(
        files=[index.path(i).decode() for i in range(len(index))],
        labels=index.labels.tolist(),
        random_shuffle=shuffled,
        initial_fill=min(len(index), 1024),
    )


def bare_pipeline(read: Read, split: Split, runtime: Runtime, layout: str) -> Pipeline:
    """Writes by hand what a DALI tutorial would: its own reader, its own random numbers.

    Args:
        read: Makes the reader's nodes: encoded images and labels.
        split: Whose chain is written.
        runtime: Device and cores.
        layout: Of the images, as the model takes them.

    Raises:
        UserError: The chain is not decode, random crop, flip, normalize.
    """
    match split.dataset.transform_ops[:4]:
        case (DecodeImage(), RandCropImage() as crop, RandFlipImage(), NormalizeImage() as normalize):
            pass
        case _:
            raise UserError(
                "the bare pipeline is written for DecodeImage, RandCropImage, RandFlipImage, NormalizeImage; "
                "DataLoader.Train has another chain"
            )
    gpu = runtime.device_id is not None
    dali = resolve(split.loader.dali, runtime)
    pipeline = Pipeline(
        batch_size=split.sampler.rows(runtime.world),
        num_threads=dali.threads,
        device_id=runtime.device_id,
        prefetch_queue_depth=dali.prefetch,
        exec_dynamic=True,
        seed=1,
    )
    with pipeline:
        encoded, label = read()
        image = fn.decoders.image_random_crop(
            encoded,
            device="mixed" if gpu else "cpu",
            random_area=list(crop.scale),
            random_aspect_ratio=list(crop.ratio),
        )
        image = fn.resize(image, resize_x=crop.size[0], resize_y=crop.size[1], antialias=crop.antialias)
        image = fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout=layout,
            mean=[value / normalize.scale for value in normalize.mean],
            std=[value / normalize.scale for value in normalize.std],
            mirror=fn.random.coin_flip(),
        )
        pipeline.set_outputs(image, label.gpu() if gpu else label)
    return pipeline

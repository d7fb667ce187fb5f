"""Bare DALI pipelines, as in DALI's tutorials. Their speed is the upper limit for ppcls's DALI loader."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, types

from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, RandCropImage, RandFlipImage, ToCHWImage
from ppcls.errors import UserError

ImageGraph = Callable[[Any, bool], Any]  # returns model input for encoded images and whether to use the GPU


def check_bare(workload: LoaderWorkload) -> None:
    """Checks that a bare pipeline supports the images and the transforms of the workload.

    Raises:
        UserError: The images or the transforms are not supported.
    """
    if workload.reader is None and not isinstance(workload.index, FileIndex):
        raise UserError(
            f"{workload.index.source}: the bare pipeline supports only image files, in a list or in folders"
        )
    if _tutorial_graph(workload) is None:
        raise UserError(
            "DataLoader.Train.dataset.transform_ops: the bare pipeline supports only the transforms "
            "DecodeImage (to 8-bit colour), RandCropImage, RandFlipImage and NormalizeImage, in this order"
        )


def read_files(workload: LoaderWorkload, *, shuffled: bool = True) -> Callable[[], Any]:
    """Returns a function that adds DALI's file reader for the workload to a pipeline; see `check_bare`."""
    index = workload.index
    positions = workload.positions if shuffled else np.sort(workload.positions)
    assert isinstance(index, FileIndex)  # as check_bare ensures
    several = index.labels.ndim == 2  # the reader does not support several labels per image
    labels = None if several else index.labels[positions].tolist()
    return lambda: fn.readers.file(
        files=[os.fsdecode(index.path(position)) for position in positions.tolist()],
        labels=labels,
        random_shuffle=shuffled,
        initial_fill=min(len(positions), 1024),
    )


def bare_pipeline(workload: LoaderWorkload, settings: DaliSettings, *, bytes_only: bool) -> Pipeline:
    """Returns a bare pipeline that is not built yet. Its outputs are images, or their bytes, and labels."""
    graph = None if bytes_only else _tutorial_graph(workload)
    read = workload.reader or read_files(workload)
    on_gpu = settings.device_id is not None
    pipeline = Pipeline(
        batch_size=workload.batch_size,
        num_threads=settings.threads,
        device_id=settings.device_id,
        prefetch_queue_depth=settings.prefetch,
        exec_dynamic=True,
        seed=1,
    )
    with pipeline:
        encoded, label = read()
        image = encoded if graph is None else graph(encoded, on_gpu)
        pipeline.set_outputs(image, label.gpu() if on_gpu else label)
    return pipeline


def _tutorial_graph(workload: LoaderWorkload) -> ImageGraph | None:
    """Returns DALI operators for the config's transforms, or None if they differ from those of tutorials."""
    match workload.split.dataset.transform_ops:
        case (
            DecodeImage(channels=3, dtype="uint8"),
            RandCropImage() as crop,
            RandFlipImage(),
            NormalizeImage() as normalize,
            *rest,
        ) if all(isinstance(op, ToCHWImage) for op in rest):
            pass
        case _:
            return None

    def add_images(encoded: Any, on_gpu: bool) -> Any:
        image = fn.decoders.image_random_crop(
            encoded,
            device="mixed" if on_gpu else "cpu",
            random_area=list(crop.scale),
            random_aspect_ratio=list(crop.ratio),
        )
        image = fn.resize(image, resize_x=crop.size[0], resize_y=crop.size[1], antialias=crop.antialias)
        return fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout=workload.layout,
            mean=[value / normalize.scale for value in normalize.mean],
            std=[value / normalize.scale for value in normalize.std],
            mirror=fn.random.coin_flip(),
        )

    return add_images

"""Bare DALI pipelines as a tutorial would write them: the upper limit of our loaders' speed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, types

from ppcls.bench.loader.workload import CHAINS, Chain, LoaderWorkload
from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, RandCropImage, RandFlipImage, ToCHWImage
from ppcls.errors import UserError

ImageGraph = Callable[[Any, bool], Any]  # adds a chain after the encoded images, on the GPU or not
ReaderGraph = Callable[[], Any]  # adds a reader, which returns images and labels


def read_files(workload: LoaderWorkload, *, shuffled: bool = True) -> ReaderGraph:
    """Returns DALI's reader of the workload's image files.

    Raises:
        UserError: The images are not files.
    """
    index, positions = workload.index, workload.positions if shuffled else np.sort(workload.positions)
    if not isinstance(index, FileIndex):
        raise UserError(f"{index.source}: the bare pipeline supports only image files, listed or in folders")
    labels = (
        index.labels[positions].tolist() if index.labels.ndim == 1 else None
    )  # or several labels per image
    return lambda: fn.readers.file(
        files=[os.fsdecode(index.path(position)) for position in positions.tolist()],
        labels=labels,
        random_shuffle=shuffled,
        initial_fill=min(len(positions), 1024),
    )


def bare_chains(workload: LoaderWorkload) -> tuple[Chain, ...]:
    """Returns the chains with a bare pipeline: those of tutorials, for 8-bit colour images in files."""
    decode = workload.split.dataset.transform_ops[0]
    plain = isinstance(decode, DecodeImage) and (decode.channels, decode.dtype) == (3, "uint8")
    if not isinstance(workload.index, FileIndex) or not plain:
        return ()
    return CHAINS if _tutorial_graph(workload) is not None else ("read",)


def need_tutorial_chain(workload: LoaderWorkload) -> None:
    """Checks that the config's chain has a bare pipeline.

    Raises:
        UserError: It has none.
    """
    if _tutorial_graph(workload) is None:
        raise UserError(
            "DataLoader.Train.dataset.transform_ops: the bare pipeline supports only the chain DecodeImage, "
            "RandCropImage, RandFlipImage, NormalizeImage"
        )


def bare_pipeline(
    chain: Chain, workload: LoaderWorkload, settings: DaliSettings, read: ReaderGraph | None = None
) -> Pipeline:
    """Returns a bare pipeline, not yet built, whose outputs have one row per image.

    Args:
        chain: One of `bare_chains`.
        workload: Images.
        settings: Threads, prefetch depth and GPU.
        read: Reader; by default that of the workload's files, shuffled.
    """
    graph = _tutorial_graph(workload) if chain == "config" else _keep_encoded
    assert graph is not None  # by bare_chains
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
        encoded, label = (read or read_files(workload))()
        pipeline.set_outputs(graph(encoded, on_gpu), label.gpu() if on_gpu else label)
    return pipeline


def _tutorial_graph(workload: LoaderWorkload) -> ImageGraph | None:
    """Returns the config's chain if it is the one of tutorials."""
    match workload.split.dataset.transform_ops:
        case (DecodeImage(), RandCropImage() as crop, RandFlipImage(), NormalizeImage() as normalize, *rest):
            if not all(isinstance(op, ToCHWImage) for op in rest):
                return None
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


def _keep_encoded(encoded: Any, on_gpu: bool) -> Any:  # noqa: ARG001 - encoded images stay where they were read
    return encoded

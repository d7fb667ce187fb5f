"""DALI pipelines as a tutorial would write them, with nothing of ours: the ceiling of our loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, types

from ppcls.bench.loader.subject import CHAINS, Chain, Subject, layout_of
from ppcls.bench.loader.timing import Epoch
from ppcls.config.sections.loader import Split
from ppcls.data.index.files import FileIndex
from ppcls.data.index.read import Index
from ppcls.data.loaders.dali.settings import DaliSettings, resolve_dali_settings
from ppcls.data.sampling.sampler import Positions
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, RandCropImage, RandFlipImage, ToCHWImage
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

Images = Callable[[Any, bool], Any]  # adds a chain behind encoded images, on a GPU or not
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


def read_files(index: Index, *, shuffled: bool, positions: Positions | None = None) -> Read:
    """Returns how DALI reads image files: in their order, or shuffled as a tutorial would.

    Args:
        index: The files.
        shuffled: Whether to shuffle.
        positions: Which of them; None for all.

    Raises:
        UserError: The images are no files.
    """
    if not isinstance(index, FileIndex):
        raise UserError(f"{index.source}: the bare pipeline is written for image files, listed or in folders")
    chosen = np.arange(len(index)) if positions is None else positions
    labels = index.labels[chosen].tolist() if index.labels.ndim == 1 else None  # one an image, or numbers
    return lambda: fn.readers.file(
        files=[os.fsdecode(index.path(each)) for each in chosen.tolist()],
        labels=labels,
        random_shuffle=shuffled,
        initial_fill=min(len(chosen), 1024),
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
    images = _tutorial(split, layout)
    if images is None:
        raise UserError(
            "the bare pipeline is written for DecodeImage, RandCropImage, RandFlipImage, NormalizeImage; "
            "DataLoader.Train has another chain"
        )
    return _pipeline(
        read,
        images,
        split.sampler.rows(runtime.world_size),
        resolve_dali_settings(split.loader.dali, runtime),
    )


def bare_chains(subject: Subject) -> tuple[Chain, ...]:
    """Returns the chains that `bare_chain` can do: of image files, and of what tutorials do to them."""
    decode = subject.split.dataset.transform_ops[0]
    plain = isinstance(decode, DecodeImage) and (decode.channels, decode.dtype) == (3, "uint8")
    if not isinstance(subject.index, FileIndex) or not plain:
        return ()
    by_tutorial = _tutorial(subject.split, "CHW") is not None
    return CHAINS if by_tutorial else tuple(each for each in CHAINS if each != "config")


def bare_chain(chain: Chain, subject: Subject, settings: DaliSettings) -> Pipeline:
    """Writes a chain of the benchmark by hand, not built yet; its outputs have a row an image.

    Args:
        chain: One of `bare_chains`.
        subject: The images.
        settings: Threads, prefetch and GPU.
    """
    images: Images | None = None
    match chain:
        case "config":
            images = _tutorial(subject.split, layout_of(subject.config))
        case "crop":
            images = _resized(subject)
        case "decode":
            images = _decoded
        case "read":
            images = _encoded
    assert images is not None  # by bare_chains
    read = read_files(subject.index, shuffled=True, positions=subject.positions)
    return _pipeline(read, images, subject.batch_size, settings)


def _pipeline(read: Read, images: Images, batch_size: int, settings: DaliSettings) -> Pipeline:
    on_gpu = settings.device_id is not None
    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=settings.threads,
        device_id=settings.device_id,
        prefetch_queue_depth=settings.prefetch,
        exec_dynamic=True,
        seed=1,
    )
    with pipeline:
        encoded, label = read()
        pipeline.set_outputs(images(encoded, on_gpu), label.gpu() if on_gpu else label)
    return pipeline


def _tutorial(split: Split, layout: str) -> Images | None:
    """Returns the config's chain where it is the one of tutorials."""
    match split.dataset.transform_ops:
        case (DecodeImage(), RandCropImage() as crop, RandFlipImage(), NormalizeImage() as normalize, *rest):
            if not all(isinstance(each, ToCHWImage) for each in rest):
                return None
        case _:
            return None

    def images(encoded: Any, on_gpu: bool) -> Any:
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
            output_layout=layout,
            mean=[value / normalize.scale for value in normalize.mean],
            std=[value / normalize.scale for value in normalize.std],
            mirror=fn.random.coin_flip(),
        )

    return images


def _encoded(encoded: Any, on_gpu: bool) -> Any:  # noqa: ARG001 - it stays where it was read
    return encoded


def _decoded(encoded: Any, on_gpu: bool) -> Any:
    return fn.decoders.image(encoded, device="mixed" if on_gpu else "cpu")


def _resized(subject: Subject) -> Images:
    resize, crop = subject.cut()
    width, height = crop.size

    def images(encoded: Any, on_gpu: bool) -> Any:
        image = fn.resize(
            _decoded(encoded, on_gpu), resize_shorter=resize.resize_short, antialias=resize.antialias
        )
        return fn.crop(image, crop_w=width, crop_h=height)

    return images

"""Decodes images for a cache with the decoder of a loader, so that the samples have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import PIL
from numpy.typing import NDArray

from ppcls.data.bad_images.search import find_undecodable
from ppcls.data.images.header import DecodeError
from ppcls.data.images.sizes import read_size
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.base import ImageState
from ppcls.data.transforms.numpy_ops.chain import run
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.basic import DecodeNumpy
from ppcls.data.transforms.specs.chain import decide_chain
from ppcls.data.transforms.specs.decisions import checked_sides_after

if TYPE_CHECKING:  # training without DALI must not import it
    from ppcls.data.loaders.dali.settings import DaliSettings

Array = NDArray[Any]
Decoded = Generator[list[Array | None], None, None]
# Decodes the images at some positions, chunk after chunk. An image may be overwritten when the next chunk is
# requested. The next chunk is decoded while the caller uses one.
Decode = Callable[[Sequence[list[int]]], Decoded]
_NO_DRAWS = np.zeros(0, np.float32)
_ANY_SIZE = 1 << 40  # pixels; the decoder has checked the size
# Chunks that one pipeline decodes. Building it takes 10 to 20 ms, and planning a batch of a longer list takes
# longer.
_PIPELINE_CHUNKS = 64


def split_cached(ops: Sequence[Op], *, only_decoder: bool) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Splits a chain into the transforms before the cache and those after it.

    The first part decodes an image and shrinks it as far as all samples have the same pixels: it has no
    random transform.

    Args:
        ops: The chain. Its first transform is DecodeImage.
        only_decoder: Whether to cache whole images.

    Returns:
        The first part; and a chain that gives the same samples from the cached images.
    """
    end = 1
    while not only_decoder and end < len(ops) and ops[end].spec.is_cached:
        end += 1
    state = state_after(ops[:end])
    assert state.dtype != "float16"
    reader = DecodeNumpy(channels=state.channels, dtype=state.dtype, max_pixels=_ANY_SIZE)
    positions = tuple(position for op in ops[:end] for position in op.positions)
    return tuple(ops[:end]), (Op(reader, 0, positions), *ops[end:])


def state_after(ops: Sequence[Op]) -> ImageState:
    """Returns the properties of images after a chain."""
    state = ImageState()
    for op in ops:
        state = op.spec.after(state)
    return state


def estimate_pixels(index: Index, ops: Sequence[Op], position: int) -> int:
    """Returns the number of pixels of an image after a chain without random transforms; 0 for a bad image."""
    try:
        width, height = read_size(ops[0].spec, index.read(position))
        sides = np.array([[height, width]])
        for op, decisions in zip(ops, decide_chain(ops, _NO_DRAWS[None], sides), strict=True):
            sides = checked_sides_after(op.spec, sides, decisions)
    except DecodeError:
        return 0
    return int(sides.prod())


def decode_by_numpy(index: Index, ops: Sequence[Op], threads: int) -> Decode:
    """Returns a function that decodes images as ``paddle.io`` does; None stands for a bad image."""

    def decode(position: int) -> Array | None:
        try:
            return run(ops, index.read(position), _NO_DRAWS)
        except ValueError:  # a DecodeError, or a crop that is larger than the image
            return None

    def decode_chunks(chunks: Sequence[list[int]]) -> Decoded:
        with ThreadPoolExecutor(threads) as pool:
            ahead = pool.map(decode, chunks[0])
            for following in [*chunks[1:], []]:
                images, ahead = ahead, pool.map(decode, following)
                yield [*images]

    return decode_chunks


def decode_by_dali(index: Index, ops: Sequence[Op], settings: DaliSettings) -> Decode:
    """Returns a function that decodes images on the CPU as DALI does; None stands for a bad image."""
    from ppcls.data.loaders.dali.loader import DaliLoader

    def decode_chunks(chunks: Sequence[list[int]]) -> Decoded:
        done = 0
        while done < len(chunks):
            try:
                part = chunks[done : done + _PIPELINE_CHUNKS]
                with closing(DaliLoader.run_chunks(index, part, ops, on_cpu)) as results:
                    for images in results:
                        done += 1
                        yield [*images]
            except (RuntimeError, DecodeError, MemoryError):  # of this chunk, or of the next one
                done += 1
                yield decode_alone(chunks[done - 1])

    def decode_alone(positions: list[int]) -> list[Array | None]:
        try:
            chunks = DaliLoader.run_chunks(index, [positions], ops, on_cpu)
            return [image.copy() for images in chunks for image in images]
        except (RuntimeError, DecodeError, MemoryError):
            bad = find_undecodable(index, ops[0].spec, positions)
        if bad:  # without them, DALI probably decodes the others together
            good = [at for at in positions if at not in bad]
            decoded = dict(zip(good, decode_alone(good) if good else [], strict=True))
            return [decoded.get(at) for at in positions]
        if len(positions) == 1:
            return [None]
        half = len(positions) // 2
        return decode_alone(positions[:half]) + decode_alone(positions[half:])

    on_cpu = replace(settings, device_id=None, decode_on_cpu=False, prefetch=1, cores=None)
    return decode_chunks


def describe_decoder(settings: DaliSettings | None) -> str:
    """Returns a text that differs if the same file may be decoded to other pixels.

    Args:
        settings: Settings of DALI; None for ``paddle.io``.
    """
    if settings is None:
        return f"OpenCV {cv2.__version__}, Pillow {PIL.__version__}"
    from nvidia import dali

    return f"DALI {dali.__version__}, OpenCV {cv2.__version__}, {dict(sorted(settings.decoder.items()))}"

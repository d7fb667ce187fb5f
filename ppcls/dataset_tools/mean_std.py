"""Mean and standard deviation of each channel over all pixels of a data set, by DALI, exactly.

DALI decodes as it does for training, and sums each image's pixels and their squares as whole numbers; Python
adds these up as whole numbers of any size. So nothing is rounded before the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from ppcls.data.bad_images.lists import bad_image_error, to_bad_images
from ppcls.data.bad_images.search import find_undecodable
from ppcls.data.images.header import DecodeError
from ppcls.data.index.read import Index
from ppcls.data.loaders.dali.reader import EncodedBatch, Reader, build_reader, shut_down
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.order import Order
from ppcls.data.sampling.sampler import ListSampler
from ppcls.data.transforms.dali_ops import LoweringContext, lower
from ppcls.data.transforms.specs import DecodeImage

_BATCH = 32
_PARTS = 10**12  # of a pixel value: the whole numbers that a standard deviation is the root of


@dataclass(frozen=True)
class PixelStats:
    """Sums over images of C channels, and what is known of each.

    Attributes:
        pixels: Of all images.
        sums: [C] of their values.
        squares: [C] of their values' squares.
        sides: [N, 2] heights and widths, turned by EXIF.
        sizes: [N] bytes of the encoded images.
    """

    pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]
    sides: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def mean(self) -> tuple[float, ...]:
        """[C] in pixel values."""
        return tuple(each / self.pixels for each in self.sums)

    @property
    def std(self) -> tuple[float, ...]:
        """[C] in pixel values, of all pixels: divided by their number."""
        return tuple(
            isqrt((self.pixels * squares - total**2) * _PARTS**2) / (self.pixels * _PARTS)
            for total, squares in zip(self.sums, self.squares, strict=True)
        )


def compute_mean_std(
    index: Index, decoder: DecodeImage, threads: int, advance: Callable[[int], object]
) -> PixelStats:
    """Decodes every image once, on the CPU.

    Args:
        index: The images.
        decoder: How they are decoded; their values are 0..255 or 0..65535, as its ``dtype`` says.
        threads: How many decode.
        advance: ProgressHooks after each batch how many images it had.

    Raises:
        BadImageError: Images can't be read or decoded; it names those of the first batch that has any.
    """
    order = Order(ListSampler(tuple(range(len(index)))), batch_size=min(_BATCH, len(index)))
    settings = DaliSettings(threads=threads)
    with ThreadPoolExecutor(threads) as pool:
        reader = build_reader(index, order, settings, decoder, pool)
        decoding: deque[EncodedBatch] = deque()  # keeps the bytes, which DALI uses in place
        pipeline = _pipeline(reader, decoding, decoder, order.batch_size, settings)
        rows = []
        try:
            for _ in range(len(order)):
                rows.append(_run(pipeline, decoding))
                advance(len(rows[-1][0]))
        except (RuntimeError, DecodeError) as error:
            steps = [each.step for each in decoding] + [step for _, step in reader.under_way]
            bad = find_undecodable(index, decoder, [at for step in steps for at in step.indices.tolist()])
            if not bad:
                raise
            raise bad_image_error(to_bad_images(index, bad)) from error
        finally:
            shut_down(pipeline)
            reader.close()
    sides, sizes, sums, squares = (np.concatenate(each) for each in zip(*rows, strict=True))
    return PixelStats(int(sides.prod(1).sum()), _total(sums), _total(squares), sides, sizes)


def _total(values: NDArray[np.uint64]) -> tuple[int, ...]:
    """Adds up [N, C] as Python's numbers, which don't overflow."""
    return tuple(sum(column) for column in values.T.tolist())


def _pipeline(
    reader: Reader,
    decoding: deque[EncodedBatch],
    decoder: DecodeImage,
    batch_size: int,
    settings: DaliSettings,
) -> Pipeline:
    """Builds what gives each image's sums and sums of squares: [C] uint64 each.

    A square fits into twice a value's bits, and the squares of four billion pixels of 16 bits into 64.
    """

    def files() -> object:
        decoding.append(reader.read())
        return decoding[-1].files

    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=settings.threads,
        device_id=None,
        prefetch_queue_depth=settings.prefetch,
        exec_dynamic=True,
    )
    with pipeline:
        encoded = fn.external_source(files, batch=True, no_copy=True)
        pixels = lower(decoder, encoded, LoweringContext("cpu", settings.threads))
        wide = fn.cast(pixels, dtype=types.UINT32 if decoder.dtype == "uint16" else types.UINT16)
        sums = [fn.reductions.sum(each, axes=[0, 1], dtype=types.UINT64) for each in (pixels, wide * wide)]
        pipeline.set_outputs(*sums)
    pipeline.build()
    return pipeline


def _run(
    pipeline: Pipeline, decoding: deque[EncodedBatch]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Returns sides [B, 2], bytes [B], sums [B, C] and sums of squares [B, C] of the next batch."""
    sums, squares = (np.array(each.as_tensor()) for each in pipeline.run())
    batch = decoding.popleft()
    real = batch.step.valid
    sizes = np.array([shape[0] for shape in batch.files.shape()], np.int64)
    return batch.sides[:real], sizes[:real], sums[:real], squares[:real]

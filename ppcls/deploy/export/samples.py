"""Reads images of a data set or folder, and prepares them for an exported model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.paths import find_images
from ppcls.data.index.files import read_image
from ppcls.data.section import Split
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import Op
from ppcls.deploy.models.untrusted import TRUST
from ppcls.errors import UserError
from ppcls.report.console import count_batches

Array = NDArray[Any]

BATCH = 8
_NO_DRAWS = np.zeros(0, np.float32)


@dataclass(frozen=True)
class ImageSamples:
    """Encoded images with their labels, if there are any.

    Attributes:
        source: List file, folder or container of the images, for messages.
        labels: Labels, [N] int64 or [N, class_num] float32; None for images without labels.
        readers: N functions, each of which reads one encoded image.
    """

    source: str
    labels: Array | None
    readers: Sequence[Callable[[], bytes | memoryview]]

    def __len__(self) -> int:
        return len(self.readers)

    def spread(self, count: int) -> ImageSamples:
        """Returns at most ``count`` samples, which are evenly spaced over the data set."""
        if count >= len(self):
            return self
        positions = np.linspace(0, len(self) - 1, count).astype(int)
        labels = None if self.labels is None else self.labels[positions]
        return ImageSamples(self.source, labels, [self.readers[position] for position in positions])

    def batches(self, ops: Sequence[Op], threads: int, use: str) -> Iterator[tuple[Array, Array | None]]:
        """Yields batches of prepared images [B, ...] with their labels, and shows the progress.

        Images that cannot be decoded are skipped.

        Args:
            ops: Transforms of an image.
            threads: Number of threads.
            use: Purpose of the images for the progress display, such as ``calibration``.
        """

        def prepare(reader: Callable[[], bytes | memoryview]) -> Array | None:
            try:
                return run(ops, reader(), _NO_DRAWS)
            except ValueError:
                return None

        positions = iter(range(len(self)))
        number = math.ceil(len(self) / BATCH)
        with ThreadPoolExecutor(threads) as pool, count_batches(use, number) as after_batch:
            while rows := list(islice(positions, BATCH)):
                prepared = list(pool.map(prepare, [self.readers[row] for row in rows]))
                good = [(row, image) for row, image in zip(rows, prepared, strict=True) if image is not None]
                if good:
                    labels = None if self.labels is None else self.labels[[row for row, _ in good]]
                    yield np.stack([image for _, image in good]), labels
                after_batch()


def read_split(
    split: Split | None, key: str, classes: int | None, unread: Sequence[str] = ()
) -> ImageSamples:
    """Returns the samples of a split.

    Args:
        split: Data set; None if the config has none.
        key: Key of the split in ``DataLoader``.
        classes: Number of classes; None if labels are identities.
        unread: See `ModelSource`.

    Raises:
        UserError: The split is missing in the config, or its data set cannot be read.
    """
    if split is None:
        if any(path.startswith(f"DataLoader.{key}.") for path in unread):
            raise UserError(f"the data sets that the config of a model names are only read with {TRUST}")
        raise UserError(f"the config has no DataLoader.{key}")
    index = split.dataset.read(classes)
    readers = [_SampleReader(index.read, position) for position in range(len(index))]
    return ImageSamples(str(index.source), index.labels, readers)


def read_files(paths: Sequence[Path]) -> ImageSamples:
    """Returns the images of files, folders and patterns, without labels.

    Raises:
        UserError: See `find_images`.
    """
    readers = [_SampleReader(read_image, os.fsencode(file)) for file in find_images(paths)]
    return ImageSamples(", ".join(map(str, paths)), None, readers)


@dataclass(frozen=True)
class _SampleReader:
    """Function that reads one sample."""

    read: Callable[[Any], bytes | memoryview]
    key: Any

    def __call__(self) -> bytes | memoryview:
        return self.read(self.key)

    def __str__(self) -> str:
        return os.fsdecode(self.key) if isinstance(self.key, bytes) else f"image {self.key}"

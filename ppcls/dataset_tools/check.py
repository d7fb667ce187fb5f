"""Finds bad images and unused files of a dataset before training."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ppcls.data.bad_images.lists import BadImage, to_bad_images
from ppcls.data.bad_images.search import find_undecodable
from ppcls.data.images.skipped import count_skipped, describe_skipped
from ppcls.data.index.class_names import join_first
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.base import Transform
from ppcls.dataset_tools.jobs import map_on_threads
from ppcls.files import IMAGE_EXTENSIONS, is_system_folder


def describe_unused(folder: Path) -> list[str]:
    """Returns log lines about files that are not images, and about subfolders without images.

    Args:
        folder: Folder to search, including its subfolders.
    """
    skipped = Counter[str]()
    empty = []
    for place, folders, files in os.walk(folder):
        folders[:] = [below for below in folders if not is_system_folder(below)]
        others = count_skipped(files, IMAGE_EXTENSIONS)
        skipped += others
        hidden = sum(file.startswith(".") for file in files)
        if not folders and len(files) == others.total() + hidden:
            empty.append(str(Path(place).relative_to(folder)))
    lines = [describe_skipped(folder, skipped)]
    lines += [f"{folder}: no images in {join_first(sorted(empty))}"] if empty else []
    return [line for line in lines if line]


def find_bad_images(index: Index, decoder: Transform, threads: int) -> Iterator[list[BadImage]]:
    """Reads and decodes all images on threads.

    Args:
        index: Samples of the dataset.
        decoder: First transform of the chain, which decodes an image.
        threads: Number of threads.

    Yields:
        For each image, a list that contains the image if it is bad, and that is empty otherwise.
    """

    def check(position: int) -> dict[int, str]:
        return find_undecodable(index, decoder, [position])

    for _, reasons in map_on_threads(check, range(len(index)), threads):
        yield to_bad_images(index, reasons)

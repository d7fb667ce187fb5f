"""What DALI is handed for files, and for all else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ppcls.data.index.files import FileIndex
from ppcls.data.index.python_source import PythonIndex
from ppcls.data.loaders.dali.encoded import FilePaths, ImageBytes, encoded_images


def test_files_are_handed_over_as_paths(tmp_path: Path) -> None:
    index = FileIndex(tmp_path, np.array([b"a.jpg", b"longer.jpg"]), np.arange(2), tmp_path)
    encoded = encoded_images(index, ThreadPoolExecutor(2), 2)
    assert isinstance(encoded, FilePaths)
    rows, _ = encoded.batch(encoded.begin(np.array([1, 0, 1])))
    assert [row.tobytes().rstrip(b"\0") for row in rows] == [index.path(each) for each in (1, 0, 1)]


def test_all_else_is_handed_over_as_bytes_in_order() -> None:
    images = [b"%d" % number * (number + 1) for number in range(50)]
    images[7] = b""  # can't be read
    encoded = encoded_images(PythonIndex("x", images, np.zeros(50, np.int64)), ThreadPoolExecutor(3), 3)  # type: ignore[arg-type]
    assert isinstance(encoded, ImageBytes)
    positions = np.random.default_rng(0).permutation(50)
    batch, memory = encoded.batch(encoded.begin(positions))
    assert [np.array(each).tobytes() for each in batch] == [images[position] for position in positions]
    assert all(
        np.shares_memory(np.asarray(each), image)
        for each, image in zip(batch, memory, strict=True)
        if image.size
    ), "not copied"

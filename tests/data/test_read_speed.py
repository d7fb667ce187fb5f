"""The speed of reading images, from the disk and from memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ppcls.data.index.files import FileIndex
from ppcls.data.read_speed import time_reading


@pytest.mark.parametrize("cold", [True, False])
def test_each_image_is_read_once(tmp_path: Path, cold: bool) -> None:
    sizes = [1000, 2000, 0, 4000]  # the empty file is a bad image
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(os.urandom(size))
    names = np.array([b"0", b"1", b"2", b"3"])
    index = FileIndex(tmp_path, names, np.zeros(4, np.int64), tmp_path)
    speed = time_reading(index, [3, 2, 1, 0], threads=3, seconds=60, cold=cold)
    assert (speed.images, speed.size) == (4, sum(sizes))
    assert speed.images_per_second == pytest.approx(4 / speed.seconds)
    assert speed.megabytes_per_second == pytest.approx(7e-3 / speed.seconds)
    if not cold:
        assert not speed.is_cold
    else:
        assert speed.is_cold or speed.resident == 1  # where the temporary folder is in memory


def test_images_without_files_are_an_error(tmp_path: Path) -> None:
    index = FileIndex(tmp_path, np.array([b"gone"]), np.zeros(1, np.int64), tmp_path)
    with pytest.raises(FileNotFoundError):
        time_reading(index, [0], threads=1, seconds=1, cold=True)

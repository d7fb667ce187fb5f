"""The page cache: files leave it, and the share that is in it is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ppcls.data.page_cache import evict, resident_share


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        path.write_bytes(os.urandom(1 << 20))  # not yet on the disk
    (tmp_path / "empty").touch()
    return [*paths, tmp_path / "empty"]


def test_evicted_files_leave_memory(files: list[Path]) -> None:
    evict(files)
    if resident_share(files) == 1:
        pytest.skip("the temporary folder is in memory")
    assert resident_share(files) == 0
    files[0].read_bytes()
    assert resident_share(files[:1]) == 1
    assert resident_share(files) == pytest.approx(1 / 3, abs=0.01)
    evict(files)
    assert resident_share(files) == 0
    assert resident_share([]) == 0


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    for function in (evict, resident_share):
        with pytest.raises(FileNotFoundError):
            function([tmp_path / "gone"])

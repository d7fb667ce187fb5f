"""Files that the system forgets, where it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls.bench.loader.page_cache import Dropped, drop, resident, try_dropping


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.jpg" for number in range(100)]
    for path in paths:
        path.write_bytes(bytes(9000))
    return paths


def test_what_was_just_written_is_in_memory_until_it_is_dropped(files: list[Path]) -> None:
    assert resident(files[0]) == 1.0
    tried = try_dropping(files)
    if not tried.cold:
        pytest.skip(tried.describe())
    drop(files)
    assert [resident(path) for path in files] == [0.0] * 100
    files[3].read_bytes()
    assert resident(files[3]) == 1.0
    assert files[3].read_bytes() == bytes(9000), "nothing of it is lost"


def test_memory_as_a_drive_forgets_nothing() -> None:
    path = Path("/dev/shm/ppcls_page_cache")
    if not path.parent.is_dir():
        pytest.skip("there is no /dev/shm")
    path.write_bytes(bytes(9000))
    try:
        tried = try_dropping([path])
    finally:
        path.unlink()
    assert not tried.cold
    assert "does not honour POSIX_FADV_DONTNEED" in tried.describe()


@pytest.mark.parametrize(
    ("tried", "cold", "said"),
    [
        (Dropped(1.0, 0.0), True, ""),
        (Dropped(1.0, 0.5), False, "50% of the data set's pages stayed in memory"),
        (Dropped(0.0, 0.0), False, "whether dropping them worked is not known"),
    ],
)
def test_only_what_was_seen_counts(tried: Dropped, cold: bool, said: str) -> None:
    assert tried.cold == cold
    assert said in tried.describe()
    assert bool(tried.describe()) != cold


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert resident(tmp_path / "empty") == 1.0


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        drop([tmp_path / "gone"])

"""The page cache: dropping files, and noticing whether that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls.bench.loader import page_cache
from ppcls.bench.loader.page_cache import COLD_SLOWDOWN, PageCache, drop, slowdown_when_dropped


def test_drop_keeps_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(9000))
    drop([tmp_path / "a"])
    assert (tmp_path / "a").read_bytes() == bytes(9000)
    with pytest.raises(FileNotFoundError):
        drop([tmp_path / "missing"])


def test_slowdown_when_dropped_of_files_in_memory_is_small() -> None:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        pytest.skip("no /dev/shm")
    path = folder / "ppcls_page_cache"
    path.write_bytes(bytes(1 << 20))
    try:
        assert slowdown_when_dropped([path]) < COLD_SLOWDOWN
    finally:
        path.unlink()


def test_slowdown_when_dropped_is_cold_over_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 1.0, 8.0, 2.0, 6.0, 1.0])
    monkeypatch.setattr(page_cache, "drop", lambda paths: None)
    monkeypatch.setattr(page_cache, "_read_seconds", lambda paths: next(seconds))
    assert slowdown_when_dropped([tmp_path / "a"]) == 4.0


def test_page_cache_reads_once_and_drops_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    monkeypatch.setattr(page_cache, "drop", lambda paths: calls.append("drop"))
    cache = PageCache([tmp_path], lambda: calls.append("read"))
    for cold in (False, False, True, True, False):
        cache.prepare(cold=cold)
    assert calls == ["read", "drop", "drop", "read"]

"""Files that change or fail for a moment while they are read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ppcls import files
from ppcls.data.records.shard import OpenFiles
from ppcls.data.transforms.numpy_ops import DecodeError


def test_open_files_rejects_rewritten_file(tmp_path: Path) -> None:
    path, reader = tmp_path / "a.tar", OpenFiles()
    path.write_bytes(b"0123456789")
    assert reader.read(path, 2, 3) == b"234"
    path.write_bytes(b"abcdefghijk")
    with pytest.raises(DecodeError, match="the file was changed during the run"):
        reader.read(path, 2, 3)


def test_open_files_rejects_touched_file(tmp_path: Path) -> None:
    path, reader = tmp_path / "a.tar", OpenFiles()
    path.write_bytes(b"0123456789")
    assert reader.read(path, 0, 1) == b"0"
    os.utime(path, ns=(1, 1))
    with pytest.raises(DecodeError, match="changed"):
        reader.read(path, 0, 1)


def test_open_files_reads_the_old_version_of_replaced_file(tmp_path: Path) -> None:
    path, reader = tmp_path / "a.tar", OpenFiles()
    path.write_bytes(b"0123456789")
    assert reader.read(path, 0, 1) == b"0"
    (tmp_path / "new").write_bytes(b"another")
    (tmp_path / "new").replace(path)
    assert reader.read(path, 1, 1) == b"1"


@pytest.mark.parametrize(("times", "works"), [(2, True), (9, False)])
def test_open_files_retries_after_network_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, works: bool
) -> None:
    path, reader = tmp_path / "a.tar", OpenFiles()
    path.write_bytes(b"0123456789")
    monkeypatch.setattr(files, "RETRY_DELAYS", (0.0, 0.0))
    whole, failures = os.pread, [times]

    def failing(*arguments: Any) -> bytes:
        failures[0] -= 1
        if failures[0] >= 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return whole(*arguments)

    monkeypatch.setattr(os, "pread", failing)
    if works:
        assert reader.read(path, 4, 2) == b"45"
    else:
        with pytest.raises(DecodeError, match="stale file handle"):
            reader.read(path, 4, 2)

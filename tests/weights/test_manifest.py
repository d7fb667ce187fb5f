"""A folder's manifest detects any change of its files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from ppcls.weights import manifest as module
from ppcls.weights.manifest import (
    MANIFEST,
    DamagedError,
    Manifest,
    read_manifest,
    verify,
    write_file,
    write_manifest,
)

CONTENT = {"model.bin": bytes(range(256)) * 9000, "state.json": b"{}", "empty": b""}


def make(folder: Path) -> Manifest:
    files = {name: write_file(folder / name, data) for name, data in CONTENT.items()}
    manifest = Manifest(serial=4, update=7, epoch=1, step=2, score=0.5, versions={"ppcls": "1"}, files=files)
    write_manifest(folder, manifest)
    return manifest


def test_sealed_manifest_is_read_back(tmp_path: Path) -> None:
    manifest = make(tmp_path)
    assert verify(tmp_path) == manifest
    tree = json.loads((tmp_path / MANIFEST).read_text())
    for name, data in CONTENT.items():
        assert tree["files"][name] == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("name", CONTENT)
def test_verify_changed_file_names_both_digests(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    data = CONTENT[name] + b"x"
    (tmp_path / name).write_bytes(data)
    digests = [hashlib.sha256(each).hexdigest() for each in (CONTENT[name], data)]
    with pytest.raises(DamagedError) as caught:
        verify(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / name}: damaged: expected {len(data) - 1} bytes with SHA-256 {digests[0]}, "
        f"found {len(data)} bytes with SHA-256 {digests[1]}; restore the file, or use another checkpoint"
    )


def test_verify_missing_file_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "empty").unlink()
    with pytest.raises(DamagedError, match="empty: missing; expected SHA-256 e3b0c442"):
        verify(tmp_path)


def test_verify_folder_in_place_of_file_is_damaged(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "empty").unlink()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DamagedError, match=r"empty: can't be read \(Is a directory\)"):
        verify(tmp_path)


def test_verify_ignores_unlisted_files(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    verify(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", "\xff", "[" * 100_000, '{"format": 2}'])
def test_read_invalid_manifest_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(DamagedError, match=r"manifest\.json: damaged: "):
        read_manifest(tmp_path)


def test_read_missing_manifest_means_an_incomplete_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=r"manifest\.json: missing; the checkpoint is incomplete"):
        read_manifest(tmp_path)


def test_read_manifest_with_changed_number_is_damaged(tmp_path: Path) -> None:
    make(tmp_path)
    text = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(text.replace('"update": 7', '"update": 8'))
    with pytest.raises(DamagedError, match=r"damaged: expected SHA-256 [0-9a-f]{64}, found [0-9a-f]{64}$"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../model.bin", "/etc/passwd", "a/b", "", ".."])
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    manifest = make(tmp_path)
    content = manifest.model_dump(mode="json")
    content["files"] = {name: content["files"]["empty"]}
    (tmp_path / MANIFEST).write_text(json.dumps({**content, "sha256": module._digest(content)}))
    with pytest.raises(DamagedError, match="damaged: files"):
        read_manifest(tmp_path)


def test_write_to_failing_disk_is_detected(tmp_path: Path) -> None:
    manifest = make(tmp_path)
    (tmp_path / "state.json").write_bytes(b"{")
    with pytest.raises(OSError, match=r"returns data that differs from what was written: .*expected 2 bytes"):
        write_manifest(tmp_path, manifest)


@pytest.mark.hostile
@pytest.mark.parametrize("name", [MANIFEST, "model.bin"])
def test_verify_pipe_in_place_of_file_is_damaged(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(DamagedError, match=f"{name}: .*not a regular file"):
        verify(tmp_path)

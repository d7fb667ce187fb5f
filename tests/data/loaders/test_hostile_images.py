"""Images that are made to occupy a loader forever, or to fill the memory."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_conformance import FAST, MAKERS
from PIL import Image

from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.images.header import check_header
from ppcls.data.images.jpeg import count_scans
from ppcls.data.images.read_header import read_header
from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, plan_chain

pytestmark = pytest.mark.hostile


def jpeg(side: int, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", **options)
    return file.getvalue()


def repeat_last_scan(encoded: bytes, count: int) -> bytes:
    scan = encoded[encoded.rindex(b"\xff\xda") : -2]
    return encoded[:-2] + scan * count + encoded[-2:]


def test_count_scans_ignores_previews_and_appended_data() -> None:
    photo = jpeg(64, progressive=True)
    assert count_scans(photo) == 6
    assert count_scans(repeat_last_scan(photo, 90)) == 96
    comment = b"\xff\xfe" + (2 + 80).to_bytes(2, "big") + b"\xff\xda" * 40
    assert count_scans(photo[:2] + comment + photo[2:] + b"\xff\xda" * 90) == 6


def test_check_header_accepts_many_scans_of_a_small_image() -> None:
    check_header(DecodeImage(), read_header(repeat_last_scan(jpeg(64, progressive=True), 500)))


def test_dali_skips_a_pipe_that_it_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid_writing(path: Any, flags: int, *rest: Any, _open: Any = os.open, **options: Any) -> int:
        if flags & os.O_WRONLY and os.fsdecode(path).endswith(".jpg"):  # root may do so, whatever the mode
            raise PermissionError(path)
        return int(_open(path, flags, *rest, **options))

    names = [f"{number}.jpg".encode() for number in range(6)]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(jpeg(32))
    index = FileIndex(tmp_path, np.array(names), np.arange(6), tmp_path)
    (tmp_path / "1.jpg").unlink()
    os.mkfifo(tmp_path / "1.jpg")
    monkeypatch.setattr(os, "open", forbid_writing)
    ops = plan_chain([DecodeImage(), ResizeImage(size=8), NormalizeImage()], "CHW")
    quarantine = Quarantine(index, tmp_path / "bad_images.txt")
    loader = MAKERS["dali-cpu"](
        index,
        Order(SequentialSampler(6), batch_size=3),
        ops,
        quarantine=quarantine,  # type: ignore[call-arg]
    )
    labels = [label for batch in loader for label in batch.label.numpy()[: batch.valid].tolist()]
    loader.release()
    assert sorted(labels) == [0, 2, 3, 4, 5]
    assert "not a regular file" in (tmp_path / "bad_images.txt").read_text()


@pytest.mark.parametrize("kind", [*FAST, pytest.param("dali-gpu", marks=pytest.mark.gpu)])
def test_hostile_images_are_skipped_by_name(kind: str, tmp_path: Path) -> None:
    names = [f"{number}.jpg".encode() for number in range(12)]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(jpeg(32))
    index = FileIndex(tmp_path, np.array(names), np.arange(12), tmp_path)
    (tmp_path / "1.jpg").write_bytes(repeat_last_scan(jpeg(9990, progressive=True), 4000))
    os.truncate(tmp_path / "6.jpg", 40 << 30)  # sparse
    for number in (4, 10):  # replaced after the index was read
        (tmp_path / f"{number}.jpg").unlink()
        os.mkfifo(tmp_path / f"{number}.jpg")
    ops = plan_chain([DecodeImage(), ResizeImage(size=8), NormalizeImage()], "CHW")
    quarantine = Quarantine(index, tmp_path / "bad_images.txt")
    order = Order(SequentialSampler(12), batch_size=4)
    loader = MAKERS[kind](index, order, ops, quarantine=quarantine)  # type: ignore[call-arg]
    labels = [label for batch in loader for label in batch.label.numpy()[: batch.valid].tolist()]
    loader.release()
    assert sorted(labels) == [0, 2, 3, 5, 7, 8, 9, 11]
    lines = (tmp_path / "bad_images.txt").read_text()
    assert "1.jpg" in lines
    assert "the JPEG has 4006 scans of 9990x9990 pixels" in lines
    assert "expected an image file of at most 1073741824 bytes, found 42949672960" in lines
    assert lines.count("not a regular file") == 2

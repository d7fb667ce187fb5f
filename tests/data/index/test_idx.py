"""Images and labels in IDX files."""

from __future__ import annotations

import gzip
import re
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.index.idx import IdxDataset, read_idx
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.dataset_tools.fashion_mnist import NAMES, make_fashion_mnist
from ppcls.errors import UserError

CHAIN = (DecodeImage(), ResizeImage(size=(6, 6)), NormalizeImage())


def idx(array: np.ndarray[Any, Any], kind: int = 8) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> IdxDataset:
    (folder / "images").write_bytes(gzip.compress(idx(images)))
    (folder / "labels").write_bytes(idx(labels))
    files = {"image_file": str(folder / "images"), "label_file": str(folder / "labels")}
    return IdxDataset(**files, transform_ops=CHAIN)


@pytest.mark.parametrize("width", [1, 4, 7])
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_pixels_and_labels_are_those_of_the_files(
    tmp_path: Path, channels: tuple[int, ...], width: int
) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 6, width, *channels), np.uint8)
    index = write(tmp_path, images, np.array([2, 0, 1, 1, 2], np.uint8)).read(3)
    assert index.labels.tolist() == [2, 0, 1, 1, 2]
    for position in range(5):
        decoded = cv2.imdecode(np.frombuffer(index.read(position), np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
        expected = np.broadcast_to(images[position].reshape(6, width, -1), (6, width, 3))
        np.testing.assert_array_equal(decoded, expected)
    assert (index.name(4), index.where(4)) == (str(tmp_path / "images"), "image 4")


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        ((4, 6), (4,), "expected images"),
        ((4, 6, 6, 2), (4,), "expected images .*; set image_file"),
        ((4, 3, 6, 6), (4,), r"channels come first: .* images\.transpose\(0, 2, 3, 1\)"),
        ((0, 6, 6), (0,), "expected images"),
        ((4, 6, 6), (3,), "expected the labels of 4 images"),
        ((4, 6, 6), (4, 6, 6), "expected the labels of 4 images"),
    ],
)
def test_files_that_do_not_belong_together(
    tmp_path: Path, images: tuple[int, ...], labels: tuple[int, ...], text: str
) -> None:
    dataset = write(tmp_path, np.zeros(images, np.uint8), np.zeros(labels, np.uint8))
    with pytest.raises(UserError, match=text):
        dataset.read(3)


def test_error_lists_the_files_beside_a_missing_one(tmp_path: Path) -> None:
    dataset = IdxDataset(
        image_file=str(tmp_path / "train-images-idx3-ubyte.gz"),
        label_file=str(tmp_path / "emnist-train-labels-idx1-ubyte.gz"),
        transform_ops=CHAIN,
    )
    with pytest.raises(UserError, match="no such file; `ppcls dataset fashion-mnist --help`"):
        dataset.read(3)
    for part in ("labels-idx1", "images-idx3"):
        (tmp_path / f"emnist-train-{part}-ubyte.gz").touch()
    found = "its folder has emnist-train-images-idx3-ubyte.gz, emnist-train-labels-idx1-ubyte.gz; set image"
    with pytest.raises(UserError, match=f"train-images-idx3-ubyte.gz: no such file; {found}"):
        dataset.read(3)


def test_transposed_images_are_read(tmp_path: Path) -> None:
    """As the error about images with the channels first says."""
    images = np.random.default_rng(1).integers(0, 256, (2, 3, 6, 4), np.uint8)
    index = write(tmp_path, images.transpose(0, 2, 3, 1), np.array([0, 1], np.uint8)).read(2)
    decoded = cv2.imdecode(np.frombuffer(index.read(1), np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    np.testing.assert_array_equal(decoded, np.moveaxis(images[1], 0, -1))


def test_labels_from_1(tmp_path: Path) -> None:
    labels = np.arange(1, 27, dtype=np.uint8)  # as in EMNIST Letters
    dataset = write(tmp_path, np.zeros((26, 6, 6), np.uint8), labels)
    for classes in (10, 26):
        with pytest.raises(UserError, match=r"\nthe labels start at 1, .*: set Arch.class_num to 27, and"):
            dataset.read(classes)
    assert dataset.read(27).labels.tolist() == labels.tolist()


def test_label_without_class(tmp_path: Path) -> None:
    dataset = write(tmp_path, np.zeros((2, 6, 6), np.uint8), np.array([0, 7], np.uint8))
    with pytest.raises(UserError, match=r"labels, image 1: label 7 is not in 0\.\.2; Arch.class_num is 3$"):
        dataset.read(3)


@given(content=st.binary(max_size=64), kept=st.integers(0, 80))
def test_damaged_files_are_errors_that_name_the_file(content: bytes, kept: int) -> None:
    good = idx(np.arange(60, dtype=np.uint8).reshape(3, 4, 5))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images"
        for damaged in (content, good[:kept], gzip.compress(good)[:kept], good + content):
            path.write_bytes(damaged)
            if damaged == good or damaged == gzip.compress(good):
                continue
            with pytest.raises(UserError, match=re.escape(str(path))):
                read_idx(path)


def test_sizes_that_overflow_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_bytes(struct.pack(">HBB4I", 0, 8, 4, *[2**32 - 1] * 4))
    with pytest.raises(UserError, match="expected at most 2147483648 bytes"):
        read_idx(path)


def test_bytes_after_the_numbers_are_not_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    zeros = np.zeros((1 << 28,), np.uint8)  # 256 MB, which compress to 0.26 MB
    path.write_bytes(gzip.compress(idx(np.zeros((2, 3, 3), np.uint8)) + zeros.tobytes(), 1))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"expected 34 bytes .* found more"):
            read_idx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 24


def test_command_copies_the_published_files_and_rejects_others(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with pytest.raises(UserError, match="apt-get install dataset-fashion-mnist"):
        make_fashion_mnist(tmp_path / "out", source)
    source.mkdir()
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = gzip.compress(idx(np.zeros((count, 28, 28), np.uint8)), 1)
        (source / f"{part}-images-idx3-ubyte.gz").write_bytes(images)
        (source / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(count, np.uint8))))
    assert make_fashion_mnist(tmp_path / "out", source)
    assert not make_fashion_mnist(tmp_path / "out", source)
    assert (tmp_path / "out/label_list.txt").read_text().splitlines()[9] == f"9 {NAMES[9]}"
    plain = tmp_path / "plain"  # as in copies of other programs, which decompress the files
    plain.mkdir()
    for file in source.iterdir():
        (plain / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    assert make_fashion_mnist(tmp_path / "compressed", plain)
    copied = tmp_path / "compressed/train-labels-idx1-ubyte.gz"
    assert gzip.decompress(copied.read_bytes()) == (plain / "train-labels-idx1-ubyte").read_bytes()
    (source / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(9, np.uint8))))
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz: expected"):
        make_fashion_mnist(tmp_path / "other", source)
    assert not (tmp_path / "other").exists()

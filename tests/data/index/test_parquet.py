"""Images and labels in Parquet files, as data sets on the Hugging Face Hub have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ppcls.data.images.header import DecodeError
from ppcls.data.index.records import ParquetDataset
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError

CHAIN = (DecodeImage(), ResizeImage(size=(6, 6)), NormalizeImage())


def encoded(value: int) -> bytes:
    return cv2.imencode(".png", np.full((6, 6, 3), value, np.uint8))[1].tobytes()


def write(file: Path, images: list[Any], labels: list[Any]) -> None:
    parquet.write_table(pa.table({"image": images, "label": labels}), file, row_group_size=2)


def dataset(*paths: Path, **columns: str) -> ParquetDataset:
    return ParquetDataset(paths=tuple(map(str, paths)), transform_ops=CHAIN, **columns)


def test_rows_of_several_files_in_both_forms(tmp_path: Path) -> None:
    write(
        tmp_path / "a-0.parquet",
        [{"bytes": encoded(n), "path": f"{n}.png"} for n in range(5)],
        [0, 1, 2, 1, 0],
    )
    write(tmp_path / "a-1.parquet", [encoded(5), encoded(6), None], [2, 2, 1])
    index = dataset(tmp_path / "a-*.parquet").read(3)
    assert index.labels.tolist() == [0, 1, 2, 1, 0, 2, 2, 1]
    for position in range(7):
        assert index.read(position) == encoded(position)
    assert (index.name(5), index.where(6)) == (str(tmp_path / "a-1.parquet"), "row 1")
    with pytest.raises(DecodeError, match="no image"):
        index.read(7)


@pytest.mark.parametrize(
    ("images", "labels", "columns", "text"),
    [
        ([b"x"], [0], {"image_column": "img"}, "no column 'img'; expected one of 'image', 'label'"),
        ([b"x"], [0], {"label_column": "class"}, "no column 'class'"),
        (["x"], [0], {}, "expected encoded images as binary values"),
        ([{"path": "x"}], [0], {}, "expected encoded images as binary values"),
        ([b"x"], ["cat"], {}, "expected a whole number for each image, found string"),
        ([b"x", b"y"], [1, None], {}, "found 1 row without one"),
        ([b"x"], [7], {}, r"row 0: label 7 is not in 0\.\.2"),
        ([b"x"], [-1], {}, "label -1"),
    ],
)
def test_files_that_do_not_fit(
    tmp_path: Path, images: list[Any], labels: list[Any], columns: dict[str, str], text: str
) -> None:
    write(tmp_path / "a.parquet", images, labels)
    with pytest.raises(UserError, match=text):
        dataset(tmp_path / "a.parquet", **columns).read(3)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        dataset(tmp_path / "a.parquet").read(3)


@given(kept=st.integers(0, 900), content=st.binary(max_size=16))
def test_damaged_files_are_errors_that_name_the_file(
    tmp_path_factory: pytest.TempPathFactory, kept: int, content: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    good = folder / "good.parquet"
    if not good.exists():
        write(good, [encoded(1)], [1])
    data = good.read_bytes()
    bad = folder / "bad.parquet"
    bad.write_bytes(data[: min(kept, len(data) - 1)] + content)
    with pytest.raises(UserError, match=r"bad\.parquet"):
        dataset(bad).read(3)

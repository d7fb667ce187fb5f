"""Images that are cropped to boxes."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from pydantic import ValidationError

from ppcls.data.images.header import DecodeError
from ppcls.data.index.image_lists import CompCars
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError

CHAIN = (DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage())
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def read(folder: Path, box: str) -> Index:
    """Writes one image with a box, and returns its index."""
    for root in ("image", "label"):
        (folder / root / "78").mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / "image" / "78" / "a.png"), PIXELS)
    (folder / "label" / "78" / "a.txt").write_text(box)
    (folder / "list.txt").write_text("78/a.png 1\n")
    dataset = CompCars(
        image_root=str(folder / "image"),
        label_root=str(folder / "label"),
        bbox_crop=True,
        cls_label_path=str(folder / "list.txt"),
        transform_ops=CHAIN,
    )
    return dataset.read(3)


def test_image_is_cropped_to_the_box_in_the_last_line(tmp_path: Path) -> None:
    index = read(tmp_path, "1\n1\n4 5 28 15\n")
    assert index.labels.tolist() == [1]
    assert index.name(0).endswith("78/a.png")
    assert index.where(0).endswith("list.txt, line 1")
    cropped = cv2.imdecode(np.frombuffer(index.read(0), np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(cropped, PIXELS[5:15, 4:28])


@pytest.mark.parametrize("box", ["", "4 5 28", "28 5 4 15", "4 5 28 -1", "4 5 28 1e9"])
def test_line_that_is_no_box_is_an_error(tmp_path: Path, box: str) -> None:
    with pytest.raises(UserError, match=r"a\.txt: expected 'left top right bottom' in the last line"):
        read(tmp_path, f"1\n{box}" if box else "")


def test_box_outside_of_the_image_is_a_bad_image(tmp_path: Path) -> None:
    index = read(tmp_path, "40 5 50 15")
    with pytest.raises(DecodeError, match="is outside of the image"):
        index.read(0)


def test_missing_boxes_are_named(tmp_path: Path) -> None:
    read(tmp_path, "4 5 28 15")
    settings = {"image_root": str(tmp_path / "image"), "cls_label_path": str(tmp_path / "list.txt")}
    with pytest.raises(ValidationError, match="bbox_crop needs the folder of the bounding boxes"):
        CompCars(**settings, transform_ops=CHAIN, bbox_crop=True)
    with pytest.raises(UserError, match=r"nowhere: no such folder; set label_root"):
        CompCars(**settings, transform_ops=CHAIN, bbox_crop=True, label_root=str(tmp_path / "nowhere")).read(
            3
        )
    (tmp_path / "label" / "78" / "a.txt").unlink()
    with pytest.raises(UserError, match=r"list\.txt, line 1: .*a\.txt: can't read the box"):
        CompCars(**settings, transform_ops=CHAIN, bbox_crop=True, label_root=str(tmp_path / "label")).read(3)

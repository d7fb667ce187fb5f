"""The picture: its size, its colours, and atomic writing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_description import DESCRIBED

from ppcls.explain.picture import draw_descriptions


def draw(path: Path, *described: object) -> np.ndarray:
    draw_descriptions(described, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def has(image: np.ndarray, colour: str) -> bool:
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return bool((image == wanted).all(-1).sum() > 500)


def test_each_split_is_one_column(tmp_path: Path) -> None:
    one = draw(tmp_path / "one.png", DESCRIBED)
    two = draw(tmp_path / "two.png", DESCRIBED, replace(DESCRIBED, split="DataLoader.Eval"))
    assert 600 < one.shape[1] < 1200
    assert one.shape[1] * 1.7 < two.shape[1] < 2400
    assert one.shape[0] == two.shape[0] > 400
    assert all(has(one, colour) for colour in ("#d6e6f5", "#fce3c0", "#d3edcb"))


def test_longer_chain_is_higher(tmp_path: Path) -> None:
    longer = replace(DESCRIBED, stages=DESCRIBED.stages * 4)
    assert draw(tmp_path / "b.png", longer).shape[0] > 2 * draw(tmp_path / "a.png", DESCRIBED).shape[0]


def test_failed_write_keeps_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pipeline.png"
    path.write_bytes(b"before")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(OSError, match="No space"):
        draw_descriptions([DESCRIBED], path)
    assert [each.name for each in tmp_path.iterdir()] == ["pipeline.png"]
    assert path.read_bytes() == b"before"

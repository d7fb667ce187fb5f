"""Whole runs over a folder of which half is broken, in every way that files break."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from figures import Figure
from runs import begin, end, said

from ppcls.data.bad_images.lists import read_bad_images
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.weights.manifest import verify

SIDE, GOOD = 40, 26


def encoded(suffix: str, number: int) -> bytes:
    image = np.random.default_rng(number).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    return bytes(cv2.imencode(suffix, image)[1].tobytes())


JPEG, PNG, WEBP = (encoded(suffix, 0) for suffix in (".jpg", ".png", ".webp"))
HUGE = JPEG.replace(SIDE.to_bytes(2, "big") * 2, b"\xff\xff\xff\xff", 1)  # 65535 x 65535 pixels
assert HUGE != JPEG
BROKEN: dict[str, bytes | None] = {
    "empty.jpg": b"",
    "text.jpg": b"not an image\n" * 50,
    "html.jpg": b"<!DOCTYPE html><html><body>404</body></html>",
    "zeros.jpg": bytes(3000),
    "noise.jpg": np.random.default_rng(1).bytes(3000),
    "start.jpg": JPEG[:2],
    "header.jpg": JPEG[:100],
    "huge.jpg": HUGE,
    "no-size.jpg": JPEG.replace(SIDE.to_bytes(2, "big") * 2, b"\0\0\0\0", 1),
    "start.png": PNG[:8],
    "header.png": PNG[:33],
    "huge.png": PNG[:16] + b"\x7f\xff\xff\xff" * 2 + PNG[24:],
    "start.webp": WEBP[:12],
    "gone.jpg": None,
}


@pytest.fixture
def half_broken(tmp_path: Path) -> Path:
    """A folder of 26 images that are whole, and of as many that are not; with a list of them in turn."""
    folder, names = tmp_path / "half broken", list(BROKEN)
    folder.mkdir()
    lines = []
    for number in range(GOOD):
        (folder / f"good{number}.jpg").write_bytes(encoded(".jpg", number))
        kind = names[number % len(names)]
        name = f"bad{number}-{kind}"
        content = BROKEN[kind]
        if content is not None:
            (folder / name).write_bytes(content)
        if number == 0:
            (folder / name).unlink()
            (folder / name).mkdir()
        if number == 1:
            (folder / name).unlink()
            (folder / name).symlink_to(folder / "nothing")
        lines += [f"good{number}.jpg\t{number % 4}\n", f"{name}\t{number % 4}\n"]
    (folder / "list.txt").write_text("".join(lines))
    return folder


def changes(folder: Path, on_error: str, use_dali: bool, workers: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "Arch__name": "Linear",
        "Global__use_dali": use_dali,
        "DataLoader__Train__sampler__batch_size": 6,
    }
    for split in ("Train", "Eval"):
        place = f"DataLoader__{split}__dataset"
        made |= {
            f"{place}__image_root": str(folder),
            f"{place}__cls_label_path": str(folder / "list.txt"),
            f"{place}__on_error": on_error,
            f"{place}__delimiter": "\t",
            f"DataLoader__{split}__loader__num_workers": workers,
        }
    return made


LOADERS = [
    pytest.param(True, 0, id="dali"),
    pytest.param(False, 0, id="paddle.io"),
    pytest.param(False, 2, id="paddle.io-2"),
]


@pytest.mark.parametrize(("use_dali", "workers"), LOADERS)
@pytest.mark.reliability
def test_run_with_skip_trains_on_the_other_images(
    make_yaml: Callable[..., Path],
    tmp_path: Path,
    half_broken: Path,
    figure: Figure,
    use_dali: bool,
    workers: int,
) -> None:
    notes = tmp_path / "notes"
    config = make_yaml("run", **changes(half_broken, "skip", use_dali, workers))
    assert end(begin("noting_run.py", config, notes)) == 0, said(notes)
    listed = [
        Path(each.name).name for path in tmp_path.glob("run/bad*.txt") for each in read_bad_images(path)
    ]
    bad = {each.name for each in half_broken.iterdir() if each.name.startswith("bad")}
    bad |= {f"bad{number}-gone.jpg" for number in range(GOOD) if number % len(BROKEN) == len(BROKEN) - 1}
    assert set(listed) == bad
    assert len(bad) == GOOD
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [each.images for each in records if isinstance(each, EvalRecord)] == [GOOD, GOOD]
    verify(tmp_path / "run" / "latest")
    figure(
        f"{'dali' if use_dali else 'paddle.io'}, {workers} workers, {2 * GOOD} files, {GOOD} of them "
        f"broken in {len(BROKEN) + 2} ways, on_error: skip: trained and evaluated on the others, all listed"
    )


@pytest.mark.parametrize(("use_dali", "workers"), LOADERS)
@pytest.mark.reliability
def test_run_with_raise_ends_at_the_first_broken_image(
    make_yaml: Callable[..., Path],
    tmp_path: Path,
    half_broken: Path,
    figure: Figure,
    use_dali: bool,
    workers: int,
) -> None:
    notes = tmp_path / "notes"
    config = make_yaml("run", **changes(half_broken, "raise", use_dali, workers))
    assert end(begin("noting_run.py", config, notes)) == 2
    text = (notes / "said").read_text()
    assert "Traceback" not in text, text
    (line,) = [each for each in text.splitlines() if each.startswith("error: ")]
    assert "/half broken/bad" in line
    figure(
        f"{'dali' if use_dali else 'paddle.io'}, {workers} workers, on_error: raise: ended with a file's name"
    )


@pytest.mark.reliability
@pytest.mark.parametrize("use_dali", [True, False], ids=["dali", "paddle.io"])
def test_run_with_only_broken_images_is_an_error(
    make_yaml: Callable[..., Path], tmp_path: Path, half_broken: Path, use_dali: bool
) -> None:
    for each in half_broken.glob("good*"):
        shutil.copy(half_broken / f"bad2-{list(BROKEN)[2]}", each)
    notes = tmp_path / "notes"
    config = make_yaml("run", **changes(half_broken, "skip", use_dali, 0))
    assert end(begin("noting_run.py", config, notes)) == 2
    text = (notes / "said").read_text()
    assert "Traceback" not in text, text
    assert "error: " in text

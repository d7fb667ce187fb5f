"""The audit in the report of a run: duplicates across splits, limits of images and of time."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ppcls.audit import run_part
from ppcls.audit.neighbours import Neighbours, find_neighbours
from ppcls.audit.run_part import CheckedLabels, ImageSet, RunAudit
from ppcls.data.index.files import FileIndex, read_folder
from ppcls.files import IMAGE_EXTENSIONS
from ppcls.report.html import HtmlReport, RunInfo
from ppcls.report.thumbnail import AuditPart, PictureSource


@pytest.fixture
def splits(tmp_path: Path) -> dict[str, FileIndex]:
    """Two splits of distinct pictures, with one copy across the splits and one with another label."""
    for number in range(12):
        image = np.random.default_rng(number).integers(0, 255, (6, 6, 3)).astype(np.uint8)
        image = cv2.resize(image, (30, 30), interpolation=cv2.INTER_CUBIC)
        file = tmp_path / ("train" if number < 8 else "val") / ("a" if number % 2 else "b") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    train = tmp_path / "train"
    (tmp_path / "val" / "a" / "<b>.png").write_bytes((train / "a" / "1.png").read_bytes())
    (train / "b" / "copy.png").write_bytes((train / "a" / "3.png").read_bytes())
    (train / "b" / "damaged.png").write_bytes(b"no image")
    return {name: read_folder(tmp_path / name, IMAGE_EXTENSIONS) for name in ("train", "val")}


def test_duplicates_across_splits_and_classes_are_found(splits: dict[str, FileIndex]) -> None:
    part = RunAudit(splits, ("a", "b"), 100, 2)(60.0)
    assert part is not None
    assert part.summary == (
        "15 of 15 images were compared. Groups of duplicates in both training and validation: 1; with "
        "different labels: 1; of other files with the same content: 0; of other near duplicates: 0; series "
        "of similar pictures: 0. Labels were not checked, because the model has no features of images."
    )
    leak, contradiction = part.groups
    assert "in train and val" in leak.text
    assert {Path(picture.title).name for picture in leak.pictures} == {"1.png", "<b>.png"}
    assert "labelled a and b" in contradiction.text


def test_pictures_are_compared_with_one_thread(
    splits: dict[str, FileIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def find(vectors: np.ndarray) -> Neighbours:
        threads.extend(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")
        return find_neighbours(vectors)

    monkeypatch.setattr(run_part, "find_neighbours", find)
    with threadpool_limits(2, "blas"):
        RunAudit(splits, (), 100, 1)(60.0)
    assert set(threads) == {1}


def test_limits_of_images_and_time(splits: dict[str, FileIndex]) -> None:
    part = RunAudit(splits, (), 5, 1)(60.0)
    assert part is not None
    assert part.summary.startswith("5 of 15 images were compared")
    part = RunAudit(splits, (), 100, 1)(0.0)
    assert part is not None
    assert part.summary == "The images were not checked, because the run had to end in time."
    assert RunAudit(splits, (), 0, 1)(60.0) is None


class Source(PictureSource):
    """A source with an audit."""

    def __init__(self, audit: RunAudit) -> None:
        self._audit = audit

    def audit(self, seconds: float) -> AuditPart | None:
        return self._audit(seconds)


def check_pixels(images: ImageSet, seconds: float, lock: object) -> CheckedLabels | str:
    """Predicts the other class for the fourth image, with the grey copies as features."""
    probabilities = np.full((len(images), 2), 0.1, np.float32)
    probabilities[np.arange(len(images)), images.index.labels] = 0.9
    assert np.isfinite(images.copies).all()
    label = int(images.index.labels[3])
    probabilities[3, label] = 0.01
    probabilities[3, 1 - label] = 0.99
    return CheckedLabels(images.copies, probabilities)


def test_suspicious_labels_are_those_of_the_readable_images(splits: dict[str, FileIndex]) -> None:
    seen: list[str] = []

    def check(images: ImageSet, seconds: float, lock: object) -> CheckedLabels | str:
        seen.append(images.index.name(3))
        return check_pixels(images, seconds, lock)

    part = RunAudit(splits, ("a", "b"), 100, 2, check)(60.0)
    assert part is not None
    assert "14 images were checked: suspicious labels: 1; unlike all others: 0." in part.summary
    (group,) = (each for each in part.groups if "predicted" in each.text)
    assert [picture.title for picture in group.pictures] == seen


def test_reason_why_labels_were_not_checked(splits: dict[str, FileIndex]) -> None:
    part = RunAudit(splits, ("a", "b"), 100, 2, lambda *_: "there is no best model")(60.0)
    assert part is not None
    assert part.summary.endswith("Labels were not checked: there is no best model.")


def test_report_shows_findings_and_escapes_names(splits: dict[str, FileIndex], tmp_path: Path) -> None:
    info = RunInfo(pictures=Source(RunAudit(splits, ("<i>", "b"), 100, 1)))
    report = HtmlReport(tmp_path / "report.html", tmp_path / "events", info)
    report.finish()
    report.close()
    text = (tmp_path / "report.html").read_text()
    assert "Images and labels to check" in text
    assert "&lt;b&gt;.png" in text
    assert "<b>.png" not in text
    assert "<i>" not in text

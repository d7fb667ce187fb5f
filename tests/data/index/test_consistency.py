"""Labels that can't teach or test a model cause warnings, in training and in `dataset check`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.cli.dataset import main as dataset_tool
from ppcls.data.index.consistency import describe_labels
from ppcls.data.index.files import FileIndex
from ppcls.engine.setup import build_run
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime

CLASSES = 4  # of the small config


def index_of(labels: Sequence[Any], paths: Sequence[str] | None = None, root: str = "/images") -> FileIndex:
    paths = paths if paths is not None else [f"{root[-1]}{number}.jpg" for number in range(len(labels))]
    array = np.array(labels)
    lines = np.arange(1, len(labels) + 1)
    return FileIndex(Path(root), np.array([path.encode() for path in paths]), array, Path("list.txt"), lines)


def describe(config: Config, train: FileIndex, evaluated: FileIndex | None = None) -> list[str]:
    indexes = {"Train": train, **({} if evaluated is None else {"Eval": evaluated})}
    return describe_labels(indexes, ("ant", "bee", "cat", "dog"), config.labelled_classes, by_class=True)


def test_complete_lists_cause_no_warning(make_config: Callable[..., Config]) -> None:
    train, evaluated = index_of([0, 1, 2, 3, 3]), index_of([0, 1, 2, 3], root="/other")
    assert describe(make_config(), train, evaluated) == []


def test_missing_classes_are_named(make_config: Callable[..., Config]) -> None:
    train, evaluated = index_of([0, 0, 2, 2]), index_of([1, 0], root="/other")
    assert describe(make_config(), train, evaluated) == [
        "warning: list.txt: classes without training images: bee, dog",
        "warning: list.txt: classes without validation images: cat",
        "warning: list.txt: has images of classes without training images: bee; the model can't learn these "
        "classes",
    ]


def test_a_single_class_is_reported(make_config: Callable[..., Config]) -> None:
    assert describe(make_config(), index_of([2, 2]))[1] == (
        "warning: list.txt: all training images have the class cat, so there is nothing to learn"
    )


def test_contradictory_labels_are_reported_with_their_lines(make_config: Callable[..., Config]) -> None:
    train = index_of([0, 1, 2, 3, 0, 2], ["a", "b", "c", "d", "a", "b"])
    assert describe(make_config(), train) == [
        "warning: list.txt: 1 image is listed again with another label: b (list.txt, line 6; list.txt, line "
        "2)"
    ]


@pytest.mark.parametrize("again", ["./a", "x/../a", ".//a", "././a"])
def test_contradictory_labels_of_one_image_are_found_in_any_notation(
    make_config: Callable[..., Config], again: str
) -> None:
    train = index_of([0, 1, 2, 3, 1], ["a", "b", "c", "d", again])
    (line,) = describe(make_config(), train)
    assert f"1 image is listed again with another label: {again} (list.txt, line 5; list.txt, line 1)" in line
    assert describe(make_config(), index_of([0, 1, 2, 3, 0], ["a", "b", "c", "d", again])) == []


@pytest.mark.parametrize(
    ("root", "paths"),
    [
        ("/images", ["x/1.jpg", "y/9.jpg"]),
        ("/images/x", ["1.jpg", "9.jpg"]),
        ("/images/../images", ["./x//1.jpg", "y.jpg"]),
    ],
)
def test_images_in_both_data_sets_are_found_by_their_paths(
    make_config: Callable[..., Config], root: str, paths: list[str]
) -> None:
    train = index_of([0, 1, 2, 3], ["x/0.jpg", "x/1.jpg", "x/2.jpg", "x/3.jpg"])
    (line,) = describe(make_config(), train, index_of([0, 1, 2, 3], [*paths, "z/1.jpg", "z/2.jpg"], root))
    assert line == (
        "warning: 1 image is both in Train (list.txt) and in Eval (list.txt), so the evaluation overrates "
        "the model: /images/x/1.jpg"
    )


def test_links_to_a_folder_are_followed(make_config: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "link").symlink_to("images")
    train, evaluated = (
        index_of([0, 1, 2, 3], ["0", "1", "2", "3"], str(tmp_path / name)) for name in ("images", "link")
    )
    (line,) = describe(make_config(), train, evaluated)
    assert line.startswith("warning: 4 images are both in Train")


def test_several_labels_are_described(make_config: Callable[..., Config]) -> None:
    rows = np.array([[1, 0, 0, 1], [0, 1, 0, 0]], np.float32)
    train, evaluated = index_of(rows), index_of(1 - rows, root="/other")
    assert describe(make_config(), train, evaluated) == [
        "warning: list.txt: classes without training images: cat",
        "warning: list.txt: has images of classes without training images: cat; the model can't learn these "
        "classes",
    ]


@given(
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=9),
    others=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=9),
)
def test_warnings_agree_with_the_sets_of_labels(labels: list[int], others: list[int]) -> None:
    """The warnings name exactly the classes that set operations find."""
    from ppcls.data.index.consistency import _describe_training_classes, _describe_validation_classes

    names = ("ant", "bee", "cat", "dog")
    train = index_of(labels)
    text = " | ".join(_describe_training_classes(train, CLASSES, names))
    missing = ", ".join(names[label] for label in sorted(set(range(CLASSES)) - set(labels)))
    assert ("classes without training images" in text) == bool(missing)
    assert missing in text
    text = " | ".join(_describe_validation_classes(index_of(others), train, CLASSES, names))
    untrained = ", ".join(names[label] for label in sorted(set(others) - set(labels)))
    assert ("can't learn" in text) == bool(untrained)
    assert untrained in text


def test_training_and_dataset_check_print_the_warnings(
    images: Path,
    make_config: Callable[..., Config],
    make_yaml: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    whole = images / "train.txt"
    part = tmp_path / "part.txt"
    part.write_text("".join(line for line in whole.read_text().splitlines(True) if not line.endswith(" 2\n")))
    changes = {
        "DataLoader__Train__dataset__cls_label_path": str(part),
        "DataLoader__Eval__dataset__cls_label_path": str(whole),
    }
    run = build_run(make_config(**changes), Runtime(), tmp_path / "run")
    assert dataset_tool(["check", "-c", str(make_yaml(**changes)), "--out", str(tmp_path / "bad.txt")]) == 0
    printed = capsys.readouterr().out
    for warning in (
        f"warning: {part}: classes without training images: 2",
        f"warning: {whole}: has images of classes without training images: 2; the model can't learn these",
        f"images are both in Train ({part}) and in Eval ({whole})",
    ):
        assert warning in printed
        assert any(warning in note for note in run.notes)

"""Initial weights of a classifier whose classes are numbered in another order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.engine.initial_weights import follow_class_names

LINEAR = [nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)]
CONVOLUTION = [nn.Conv2D(3, 3, 2), nn.Flatten()]


def logits_before_and_after(
    layers: Sequence[nn.Layer], folder: Path, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    (folder / "label_list.txt").write_text("0 ant\n1 bee\n2 cat\n")
    model = nn.Sequential(*layers)
    image = paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 3, 2, 2)).astype("float32"))
    before = model(image).numpy()
    notes = follow_class_names(model, folder, names)
    return before, model(image).numpy(), notes


@pytest.mark.parametrize("layers", [LINEAR, CONVOLUTION], ids=["linear", "convolution"])
@pytest.mark.parametrize(
    ("names", "rows", "note"),
    [
        (("bee", "cat", "zebra"), [1, 2, 0], "by the names of the classes: bee, cat; zebra starts from ant"),
        (("cat", "bee", "ant"), [2, 1, 0], "by the names of the classes: ant, cat"),
        (("ant", "bee", "dog"), [0, 1, 2], "had other names: 2 was 'cat' and is now 'dog'"),
        (("x", "y", "z"), [0, 1, 2], "had other names: 0 was 'ant'"),
        (("ant", "bee", "cat"), [0, 1, 2], ""),
        (("ant", "bee"), [0, 1, 2], ""),
        ((), [0, 1, 2], ""),
    ],
)
def test_classifier_follows_the_names_of_the_classes(
    layers: list[nn.Layer], names: tuple[str, ...], rows: list[int], note: str, tmp_path: Path
) -> None:
    before, after, notes = logits_before_and_after(layers, tmp_path, names)
    np.testing.assert_allclose(after, before[:, rows], rtol=1e-5)
    assert len(notes) == bool(note)
    assert all(note in text for text in notes)


def test_other_label_lists_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "label_list.txt").write_text("ant\nbee\ncat\n")
    (note,) = follow_class_names(nn.Linear(2, 3), tmp_path, ("a", "b", "c"))
    assert "the class names are not compared" in note

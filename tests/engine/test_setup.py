"""Log lines about a run, before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls.engine.setup import _read_listed_classes, suggest_small_model
from ppcls.postprocess.methods import Topk
from ppcls.postprocess.section import Infer


@pytest.mark.parametrize(
    ("name", "side", "slow"),
    [("ResNet18", 224, True), ("ResNet18", 32, False), ("MobileNetV3_small_x1_0", 224, False)],
)
def test_small_model_is_suggested_by_operations_at_the_size_of_the_images(
    name: str, side: int, slow: bool
) -> None:
    lines = suggest_small_model(name, [3, side, side])
    assert [line.startswith(f"{name} is slow on a CPU; ") for line in lines] == [True] * slow


def test_invalid_file_of_class_names_is_reported_before_training(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("0 cats\nx dogs\n", "utf-8")
    infer = Infer.model_construct(PostProcess=Topk(class_id_map_file=str(file)))
    assert _read_listed_classes(infer, 3)[0] == ()
    (warning,) = _read_listed_classes(infer, 3)[1]
    assert f"{file}, line 2: expected 'id name'" in warning
    assert "predictions will fail" in warning
    file.write_text("0 cats\n1 dogs\n2 birds\n", "utf-8")
    assert _read_listed_classes(infer, 3) == (("cats", "dogs", "birds"), [])
    imagenet = Infer.model_construct(PostProcess=Topk(class_id_map_file="imagenet1k_label_list.txt"))
    assert "has ImageNet's classes, but the model has 3 classes" in _read_listed_classes(imagenet, 3)[1][0]

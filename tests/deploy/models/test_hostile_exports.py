"""Exported models whose files contradict each other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_classifier import export_model, forget_files, write_config, write_image

from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.serve.service import load

pytestmark = pytest.mark.hostile

TWO_CLASSES: dict[str, Any] = {
    "Output": {"shape": [-1, 2]},
    "PostProcess": {"Topk": {"topk": 2, "label_list": ["a", "b"]}},
}


@pytest.fixture(scope="module", params=["onnx", "paddle"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("model"), request.param)


def changed(exported: Path, folder: Path, sections: dict[str, Any]) -> Path:
    """Returns a copy whose inference.yml has other values in some sections."""
    copy = shutil.copytree(exported, folder / "copy")
    tree = yaml.safe_load((copy / "inference.yml").read_text(encoding="utf-8"))
    for name, values in sections.items():
        tree[name] = values if name == "PostProcess" else {**tree[name], **values}
    write_config(copy / "inference.yml", tree)
    return copy


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"Input": {"name": "other"}}, "expected the input other as in inference.yml, but the model has x"),
        ({"Input": {"layout": "NHWC"}}, "cannot run this model"),
        (TWO_CLASSES, r"expected outputs of shape \[-1, 2\], as inference.yml describes, got \[1, 3\]"),
        ({"PostProcess": {"ThreshOutput": {"threshold": 0.5}}}, "needs two classes, but the model has 3"),
        (
            {
                "Output": {"activation": "sigmoid"},
                "PostProcess": {"MultiLabelThreshOutput": {"threshold": [0.5] * 7}},
            },
            "threshold: expected 3 thresholds, one per class, got 7",
        ),
    ],
    ids=["input", "layout", "width", "threshold", "thresholds"],
)
def test_description_that_does_not_fit_is_an_error(
    exported: Path, tmp_path: Path, sections: dict[str, Any], reason: str
) -> None:
    image = write_image(tmp_path / "image.png", 0).read_bytes()
    copy = changed(exported, tmp_path, sections)
    with pytest.raises(UserError, match=reason):
        Predictor(copy, device="cpu").predict([image])


def test_server_rejects_a_model_of_other_width(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected outputs of shape \[-1, 2\]"):
        load(find_source(changed(exported, tmp_path, TWO_CLASSES)), 2)


def test_onnx_file_without_a_graph_is_an_error(exported: Path, tmp_path: Path) -> None:
    copy = changed(exported, tmp_path, {})
    if not (copy / "inference.onnx").exists():
        pytest.skip("of ONNX only")
    forget_files(copy)
    (copy / "inference.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(UserError, match=r"onnxruntime cannot load this model: .*No graph was found"):
        Predictor(copy, overrides=["Infer.engine=onnxruntime"])


def test_folder_mixed_from_two_exports_is_rejected(exported: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    weights = next(file for ending in ("onnx", "pdiparams") for file in copy.glob(f"*.{ending}"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1  # weights of another export with the same architecture
    weights.write_bytes(content)
    with pytest.raises(UserError, match=f"{weights.name}: damaged or from another export: "):
        Predictor(copy)
    forget_files(copy)
    Predictor(copy, device="cpu")


def test_stray_program_in_an_exported_folder_is_rejected(exported: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    if not (copy / "inference.onnx").exists():
        pytest.skip("its own program has such a name")
    (copy / "inference.pdmodel").write_bytes(b"")
    with pytest.raises(UserError, match=r"inference\.pdmodel: from another export, because .* lists only"):
        Predictor(copy)

"""Models that PaddleClas exported: two files of Paddle, and sometimes its own ``inference.yml``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from bundles import write_photographs
from paddleclas_export import build
from paths import ROOT
from runs import GUARD
from small_classifier import write_image

from ppcls.cli.export import export
from ppcls.cli.infer import infer
from ppcls.config.base.errors import ConfigError
from ppcls.data.index.class_names import IMAGENET_NAMES, read_class_names
from ppcls.deploy.bundle.schema import read_bundle_file
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.postprocess.results import Classification

# What PaddleClas writes into inference.yml for its own files
TRANSFORMS = [
    {"ResizeImage": {"resize_short": 73}},
    {"CropImage": {"size": 64}},
    {
        "NormalizeImage": {
            "scale": 0.00392156862745098,
            "mean": [0.5, 0.4, 0.3],
            "std": [0.2, 0.3, 0.4],
            "order": "",
            "channel_num": 3,
        }
    },
    {"ToCHWImage": None},
]
Save = Callable[..., Path]


@pytest.fixture(scope="module", params=["1", "0"], ids=["json", "pdmodel"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports of all kinds, in a format of Paddle 3 or 2.6."""
    if request.param == "1" and paddle.__version__.startswith("2."):
        pytest.skip("Paddle 2.6 has no inference.json")
    folder = tmp_path_factory.mktemp("exported")
    skipped = ["sigmoid"] if request.param == "0" else []
    subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / "paddleclas_export.py", folder, *skipped],
        env={**os.environ, "FLAGS_enable_pir_api": request.param},
        check=True,
        capture_output=True,
        timeout=GUARD,
    )
    return folder


@pytest.fixture
def save(exported: Path, tmp_path: Path) -> Save:
    """Returns a function that copies an export."""

    def copy(width: int, activation: str) -> Path:
        return shutil.copytree(exported / f"{width}_{activation}", tmp_path / "model")

    return copy


def expected_output(width: int, activation: str, prepared: np.ndarray) -> np.ndarray:
    return np.asarray(build(width, activation)(paddle.to_tensor(prepared[None])).numpy()[0])


def write_description(folder: Path, postprocess: dict[str, object]) -> None:
    tree = {"PreProcess": {"transform_ops": TRANSFORMS}, "PostProcess": postprocess}
    (folder / "inference.yml").write_text(yaml.dump(tree))


def test_export_with_its_description_is_read(save: Save, tmp_path: Path) -> None:
    folder = save(3, "softmax")
    write_description(folder, {"Topk": {"topk": 2, "label_list": ["cat", "dog", "1e5"]}})
    predictor = Predictor(find_source(folder))
    image = write_image(tmp_path / "a.png", 1).read_bytes()
    (found,) = predictor.predict([image])
    scores = expected_output(3, "softmax", predictor.prepare(image))
    order = np.argsort(-scores)[:2]
    assert found.class_ids == tuple(order.tolist())
    assert found.names == tuple(np.array(["cat", "dog", "1e5"])[order].tolist())
    np.testing.assert_allclose(found.scores, scores[order], rtol=1e-5)
    assert predictor.prepare(image).shape == (3, 64, 64)


def test_export_for_retrieval_returns_embeddings_of_length_one(save: Save, tmp_path: Path) -> None:
    folder = save(6, "none")
    write_description(folder, {"NormalizeFeatures": None})  # type: ignore[dict-item]
    predictor = Predictor(find_source(folder))
    image = write_image(tmp_path / "a.png", 1).read_bytes()
    (found,) = predictor.embed([image])
    vector = expected_output(6, "none", predictor.prepare(image))
    np.testing.assert_allclose(found.vector, vector / np.linalg.norm(vector), rtol=1e-4, atol=1e-6)


def test_export_of_attributes_is_read(exported: Path, save: Save, tmp_path: Path) -> None:
    if not (exported / "26_sigmoid").exists():
        pytest.skip("this Paddle can't write a sigmoid in this format")
    folder = save(26, "sigmoid")
    names = [f"attribute {number}" for number in range(26)]
    keys = {"threshold": 0.5, "glasses_threshold": 0.3, "hold_threshold": 0.6, "label_list": names}
    write_description(folder, {"PersonAttribute": keys})
    predictor = Predictor(find_source(folder))
    image = write_image(tmp_path / "a.png", 1).read_bytes()
    (found,) = predictor.predict([image])
    scores = expected_output(26, "sigmoid", predictor.prepare(image))
    thresholds = np.full(26, 0.5)
    thresholds[[1, 18]] = 0.3, 0.6
    assert sorted(found.class_ids) == np.flatnonzero(scores >= thresholds).tolist()


@pytest.mark.parametrize(("width", "side"), [(5, 64), (1000, 96)])
def test_export_without_description_is_prepared_as_imagenet(
    save: Save, width: int, side: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(width, "softmax")
    image = write_image(tmp_path / "a.png", 1)
    predictor = Predictor(find_source(folder))
    assert "no inference.yml, so images are prepared as PaddleClas prepares those" in capsys.readouterr().err
    assert predictor.prepare(image.read_bytes()).shape == (3, side, side)
    (found,) = predictor.predict([image.read_bytes()])
    assert isinstance(found, Classification)
    names = read_class_names(IMAGENET_NAMES, 1000)
    assert found.names == (tuple(names[number] for number in found.class_ids) if width == 1000 else None)
    assert infer(["--model", str(folder), str(image)]) == 0


def test_preparation_of_an_export_without_description_can_be_set(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(5, "softmax")
    prepared = [{"ResizeImage": {"size": 64}}, {"NormalizeImage": {"order": ""}}, {"ToCHWImage": {}}]
    chain = [{"DecodeImage": {}}, *prepared]
    source = find_source(folder, {"Infer.transforms": chain})
    assert capsys.readouterr().err == ""
    image = write_image(tmp_path / "a.png", 1).read_bytes()
    assumed = Predictor(find_source(folder)).prepare(image)
    assert not np.array_equal(Predictor(source).prepare(image), assumed)


def test_wrong_descriptions_of_paddleclas_are_named(save: Save) -> None:
    folder = save(3, "softmax")
    write_description(folder, {"Topk": {"topk": 2, "label_list": ["cat", "dog"]}})
    with pytest.raises(ConfigError, match="label_list has 2 names, expected 3, one per class"):
        find_source(folder)
    write_description(folder, {"MultiLabelThreshOutput": {"threshold": 0.5, "label_list": ["a", "b", "c"]}})
    with pytest.raises(ConfigError, match="needs sigmoid, but the model ends in softmax"):
        find_source(folder)
    (folder / "inference.yml").write_text("PreProcess: 3\nPostProcess: [1]\n")
    with pytest.raises(ConfigError, match="transform_ops"):
        find_source(folder)


@pytest.mark.hostile
def test_damaged_program_without_description_is_an_error(save: Save) -> None:
    folder = save(3, "softmax")
    (program,) = [path for path in folder.iterdir() if path.suffix in (".json", ".pdmodel")]
    content = program.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"{}", content.replace(b"softmax", b"softmix")):
        program.write_bytes(damaged)
        with pytest.raises(UserError, match=r"not an exported network|expected"):
            find_source(folder)


@pytest.mark.parametrize("width", [3, 6])
def test_export_is_converted_to_onnx(save: Save, tmp_path: Path, width: int) -> None:
    folder = save(width, "softmax" if width == 3 else "none")
    target = tmp_path / "onnx"
    assert export(["--from", str(folder), "--format", "onnx", "--output", str(target)]) == 0
    image = write_image(tmp_path / "a.png", 1).read_bytes()
    original, converted = (Predictor(path, device="cpu") for path in (folder, target))
    (actual,) = converted.run([converted.prepare(image)])
    (expected,) = original.run([original.prepare(image)])
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_export_of_paddlex_is_bundled(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(3, "softmax")
    write_description(folder, {"Topk": {"topk": 2, "label_list": ["cat", "dog", "bird"]}})
    description = yaml.safe_load((folder / "inference.yml").read_text())
    backends = {"backend_configs": {"paddle_infer": {"trt_dynamic_shapes": {"x": [[1, 3, 64, 64]]}}}}
    description |= {"Hpi": backends, "Global": {"model_name": "PP-LCNet_x1_0"}}
    (folder / "inference.yml").write_text(yaml.dump(description))
    target = tmp_path / "bundle"
    words = ["--from", str(folder), "--format", "bundle", "--output", str(target)]
    assert export([*words, "--golden-data", str(write_photographs(tmp_path / "photos"))]) == 0
    assert "PP-LCNet_x1_0" in (target / "README.md").read_text()
    assert "verified: PASS: 4 of 4" in capsys.readouterr().out
    assert read_bundle_file(target).classes == ("cat", "dog", "bird")

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from small_classifier import NAME, config_tree, write_image, write_weights
from small_classifier import write_config as write
from small_embedding import FEATURES, SIZE, embedding_tree, write_model

from ppcls.cli import export as export_cli
from ppcls.cli import infer as infer_cli
from ppcls.config.base.errors import ConfigError
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import plan_chain
from ppcls.deploy.export import parity
from ppcls.deploy.predictor import Predictor
from ppcls.engine.core.networks import build_network
from ppcls.errors import UserError
from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import load_config, validate
from ppcls.weights.files import fill_model, read_weights


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = embedding_tree(tmp_path_factory.mktemp("model") / "model.safetensors")
    write_model(made)
    return made


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    return [write_image(folder / f"{seed}.png", seed) for seed in range(5)]


def evaluated(tree: dict[str, Any], images: list[Path]) -> np.ndarray:
    """Returns what evaluation compares, [N, D]: the network's features, of length 1."""
    config = validate(tree, "test")
    assert config.Infer is not None
    model = build_network(config.Arch)
    fill_model(model, read_weights(Path(tree["Global"]["pretrained_model"])), "weights")
    model.eval()
    ops = plan_chain(config.Infer.transforms, "CHW")
    pixels = np.stack([run(ops, image.read_bytes(), np.zeros(0, np.float32)) for image in images])
    features = model(paddle.to_tensor(pixels))["features"].numpy()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert isinstance(unit, np.ndarray)
    return unit


def export(tree: dict[str, Any], folder: Path, *options: str) -> int:
    config = write(folder / "config.yaml", tree)
    override = ["-o", f"Global.save_inference_dir={folder / 'inference'}"]
    return export_cli.export(["-c", str(config), *options, *override])


@pytest.fixture(scope="module")
def exported(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model for Paddle Inference."""
    folder = tmp_path_factory.mktemp("exported")
    assert export(tree, folder) == 0
    return folder / "inference"


@pytest.mark.parametrize("use_dali", [False, True], ids=["threads", "dali"])
def test_infer_writes_the_embeddings_of_evaluation(
    tree: dict[str, Any], images: list[Path], tmp_path: Path, use_dali: bool, capsys: pytest.CaptureFixture
) -> None:
    config, out = write(tmp_path / "config.yaml", tree), tmp_path / "found.jsonl"
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    named = [str(each) for each in [*images[:3], broken, *images[3:]]]
    options = ["--out", str(out), "-o", f"Global.use_dali={use_dali}"]
    assert infer_cli.infer([*named, "-c", str(config), *options]) == 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["path"] for row in rows] == named
    assert rows[3] == {"path": str(broken), "error": "not an image that can be decoded"}
    found = np.array([row["embedding"] for row in rows if "embedding" in row])
    np.testing.assert_allclose(found, evaluated(tree, images), atol=1e-5)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{images[0]}: {SIZE} values: {found[0, 0]:.4f} ")
    assert shown[0].endswith(" …")


@pytest.mark.parametrize(
    ("kind", "preprocess"),
    [pytest.param("paddle", False, marks=pytest.mark.slow), ("paddle", True), ("onnx", False)],
)
def test_exported_model_returns_the_same_embeddings(
    tree: dict[str, Any],
    images: list[Path],
    tmp_path: Path,
    kind: str,
    preprocess: bool,
    capsys: pytest.CaptureFixture,
) -> None:
    assert export(tree, tmp_path, "--format", kind, *(["--preprocess"] if preprocess else [])) == 0
    if kind == "onnx" or preprocess:
        assert (
            "[Export] checked: the relative difference between the embeddings of the exported and the "
            "trained model is at most " in capsys.readouterr().out
        )
    description = yaml.safe_load((tmp_path / "inference" / "inference.yml").read_text())
    assert description["Output"] == {"shape": [-1, SIZE], "dtype": "float32", "activation": "l2_norm"}
    assert description["PostProcess"] is None
    predictor = Predictor(tmp_path / "inference", device="cpu", batch_size=2)
    assert predictor.names is None
    found = np.stack([each.vector for each in predictor.embed([image.read_bytes() for image in images])])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, evaluated(tree, images), atol=1e-5)
    with pytest.raises(UserError, match="returns embeddings, not classes; call embed"):
        predictor.predict([])
    for settings in ({"topk": 2}, {"overrides": ["Infer.PostProcess.topk=3"]}):
        with pytest.raises(UserError, match=r"returns embeddings, not classes; remove Infer\.PostProcess"):
            Predictor(tmp_path / "inference", device="cpu", **settings)


@pytest.mark.slow
def test_export_omits_the_head(tree: dict[str, Any], exported: Path, tmp_path: Path) -> None:
    large = {**tree, "Arch": {**tree["Arch"], "Head": {**tree["Arch"]["Head"], "class_num": 50_000}}}
    large["Global"] = {**tree["Global"], "pretrained_model": str(tmp_path / "large.safetensors")}
    write_model(large)
    assert export(large, tmp_path) == 0
    file = "inference.pdiparams"
    assert (tmp_path / "inference" / file).stat().st_size == (exported / file).stat().st_size


def test_backbone_without_neck_has_the_width_of_its_features(
    tree: dict[str, Any], images: list[Path], tmp_path: Path
) -> None:
    arch = {"name": "RecModel", "Backbone": tree["Arch"]["Backbone"]}
    alone = {**tree, "Arch": arch, "Loss": {"Train": [{"TripletLoss": None}]}}
    alone["Global"] = {**tree["Global"], "pretrained_model": str(tmp_path / "alone.safetensors")}
    write_model(alone)
    trained = Predictor(validate(alone, "test"))
    assert trained.description.width == -1
    (found,) = trained.embed([images[0].read_bytes()])
    assert found.vector.shape == (FEATURES,)
    assert export(alone, tmp_path) == 0
    assert Predictor(tmp_path / "inference", device="cpu").description.width == FEATURES


def test_export_with_other_embeddings_is_not_written(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(parity, "TOLERANCE", 0.0)
    assert export(tree, tmp_path, "--format", "onnx") == 2
    assert f"the embeddings of the exported {NAME} differ by " in capsys.readouterr().err
    assert not (tmp_path / "inference").exists()


def test_load_contradictory_description_is_an_error(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "inference")
    file = tmp_path / "inference" / "inference.yml"
    file.write_text(file.read_text().replace("l2_norm", "softmax"))
    with pytest.raises(ConfigError, match="PostProcess is null, but the model returns scores"):
        Predictor(tmp_path / "inference", device="cpu")


def test_embed_of_a_classifier_is_an_error(tmp_path: Path) -> None:
    predictor = Predictor(validate(config_tree(write_weights(tmp_path / "w.safetensors"), None), "test"))
    with pytest.raises(UserError, match="returns classes, not embeddings; call predict"):
        predictor.embed([])


def test_postprocess_of_an_embedding_model_has_no_effect(tree: dict[str, Any]) -> None:
    assert config_warnings(load_config(tree)) == []
    changed = {**tree, "Infer": {**tree["Infer"], "PostProcess": {"name": "Topk", "topk": 4}}}
    assert config_warnings(load_config(changed)) == [
        "warning: Infer.PostProcess has no effect; a RecModel returns embeddings"
    ]
    with pytest.raises(UserError, match="the model returns embeddings, not classes; remove topk"):
        Predictor(validate(tree, "test"), topk=2)


def test_gallery_returns_the_nearest_images(
    tree: dict[str, Any], images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = write(tmp_path / "config.yaml", tree)
    broken = images[0].parent / "broken.png"
    broken.write_bytes(b"no image")
    query = write_image(tmp_path / "query.png", 77)
    capsys.readouterr()
    arguments = ["-c", str(config), "--gallery", str(images[0].parent), "--nearest", "2"]
    asked = [str(query), str(images[3])]
    assert infer_cli.infer([*asked, *arguments, "--json", "--on-error", "ignore"]) == 0
    first, *rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first == {"path": str(broken), "error": "not an image that can be decoded"}
    assert [row["path"] for row in rows] == asked
    vectors = evaluated(tree, images)
    for row, vector in zip(rows, evaluated(tree, [query, images[3]]), strict=True):
        similar = vectors @ vector
        best = np.argsort(-similar)[:2]
        assert row["nearest"] == [str(images[each]) for each in best]
        np.testing.assert_allclose(row["similarities"], similar[best], atol=1e-5)
    assert rows[1]["nearest"][0] == str(images[3])
    assert infer_cli.infer([str(images[3]), *arguments]) == 3
    said = capsys.readouterr()
    assert f"{images[3]}: {images[3]} 1.0000, {rows[1]['nearest'][1]} " in said.out
    assert "1 of 7 images could not be predicted" in said.err
    broken.unlink()


def test_invalid_gallery_is_an_error(
    tree: dict[str, Any], images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bad = tmp_path / "bad" / "bad.png"
    bad.parent.mkdir()
    bad.write_bytes(b"no image")
    config = write(tmp_path / "config.yaml", tree)
    assert infer_cli.infer([str(images[0]), "-c", str(config), "--gallery", str(bad.parent)]) == 2
    assert "no image of the gallery can be read; the lines above give the reasons" in capsys.readouterr().err
    classes = config_tree(write_weights(tmp_path / "w.safetensors"), None)
    config = write(tmp_path / "classes.yaml", classes)
    assert infer_cli.infer([str(images[0]), "-c", str(config), "--gallery", str(images[0])]) == 2
    assert "expected an embedding model (RecModel), found a classifier" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        infer_cli.infer([str(images[0]), "-c", str(config), "--nearest", "0"])
    assert "--nearest: expected an integer > 0, got '0'" in capsys.readouterr().err
    assert infer_cli.infer([str(images[0]), "-c", str(config), "--nearest", "2"]) == 2
    assert "--nearest needs --gallery, the images to search" in capsys.readouterr().err

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from small_classifier import (
    CLASSES,
    arch_tree,
    config_tree,
    forget_files,
    write_config,
    write_image,
    write_names,
    write_weights,
)

from ppcls.cli import export as export_cli
from ppcls.config.base.errors import ConfigError
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.postprocess.results import Classification
from ppcls.recipe.load import validate


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("model")
    return config_tree(write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"))


@pytest.fixture(scope="module")
def exported(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "inference"
    options = ["-o", f"Global.save_inference_dir={folder}"]
    assert export_cli.export(["-c", str(write_config(folder.parent / "config.yaml", tree)), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("images")
    return [write_image(folder / f"{seed}.png", seed, 40 + seed, 50).read_bytes() for seed in range(5)]


def pixels(encoded: bytes) -> np.ndarray:
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def same(found: list[Classification], expected: list[Classification]) -> None:
    assert [each.class_ids for each in found] == [each.class_ids for each in expected]
    assert [each.names for each in found] == [each.names for each in expected]
    np.testing.assert_allclose([each.scores for each in found], [each.scores for each in expected], atol=1e-5)


def test_trained_and_exported_models_agree(tree: dict[str, Any], exported: Path, images: list[bytes]) -> None:
    trained = Predictor(validate(tree, "test"), topk=3)
    expected = trained.predict(images)
    assert len(expected) == 5
    assert [each.names for each in expected] == [
        tuple(CLASSES[k] for k in each.class_ids) for each in expected
    ]
    assert all(sorted(each.scores, reverse=True) == list(each.scores) for each in expected)
    np.testing.assert_allclose([sum(each.scores) for each in expected], 1, atol=1e-5)
    predictor = Predictor(exported, device="cpu", topk=3, batch_size=2)
    assert predictor.names == CLASSES
    same(predictor.predict(images), expected)
    same(predictor.predict([pixels(each) for each in images]), expected)
    outputs = predictor.run([predictor.prepare(image) for image in images])
    same([predictor.interpret(output) for output in outputs], expected)
    assert predictor.predict([]) == predictor.run([]) == []
    assert predictor.interpret(outputs[0], topk=1).class_ids == expected[0].class_ids[:1]


def test_predictor_names_a_bad_image_by_its_index(exported: Path, images: list[bytes]) -> None:
    predictor = Predictor(exported, device="cpu")
    with pytest.raises(ValueError, match=r"images\[1\]: not an image that can be decoded"):
        predictor.predict([images[0], b"nonsense"])
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(
            ValueError,
            match=r"images\[0\]: expected pixels of shape \[height, width, 3\] and dtype uint8, got",
        ):
            predictor.predict([wrong])
    for wrong in ("photo.jpg", Path("photo.jpg"), None):
        with pytest.raises(ValueError, match=r"images\[1\]: expected the bytes of an image file, such"):
            predictor.predict([images[0], wrong])
    for wrong in ("photo.jpg", Path("photo.jpg"), images[0]):
        with pytest.raises(ValueError, match=r"expected a list of images, got .*; put the image into a list"):
            predictor.predict(wrong)


def test_exported_model_accepts_some_settings(exported: Path, images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("0 x\n1 y\n2 z\n")
    settings = ["Global.device=cpu", f"Infer.PostProcess.class_id_map_file={tmp_path / 'names.txt'}"]
    predictor = Predictor(exported, overrides=settings)
    assert predictor.names == ("x", "y", "z")
    for wrong, message in [
        (
            "Infer.PostProcess.topk=4",
            r"PostProcess\.Topk\.topk: expected at most 3, .* classes, got 4$",
        ),
        ("Infer.transforms=[DecodeImage]", r"Infer\.transforms: "),
        (
            "Infer.transforms.1.ResizeImage.resize_short=40",
            "of an exported model cannot be changed; export the model again",
        ),
        ("Arch.name=ResNet50", "Arch: unknown key"),
        ("Global.devise=cpu", "Global.devise: unknown key; did you mean 'device'"),
    ]:
        with pytest.raises((ConfigError, UserError), match=message):
            Predictor(exported, overrides=[wrong])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "gone: no such file or folder; expected a checkpoint folder such as output/best_model"),
        ("empty", "empty: not a model; expected a checkpoint folder"),
        ("run/model.safetensors", "model.safetensors: not a model: name its folder .*/run instead"),
        ("runs", "runs: not a model; it contains the run .*/runs/pets; expected"),
        ("runs/pet", r"no such file or folder; did you mean .*/runs/pets\?; expected"),
        ("runs/pets/checkpoints", r"not a model; did you mean the run .*/runs/pets\?; expected"),
        ("alone.pdparams", "not a model: this file contains only weights; pass a config"),
        ("gone.onnx", "gone.onnx: no such file"),
        ("gone.yaml", "gone.yaml: no such config file"),
    ],
)
def test_predictor_of_missing_model_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "runs" / "pets" / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs" / "pets" / "config.yaml").touch()
    for file in ("run/model.safetensors", "run/config.yaml", "alone.pdparams"):
        (tmp_path / file).touch()
    with pytest.raises(UserError, match=message):
        Predictor(tmp_path / name)


def test_predictor_of_damaged_export_is_an_error(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "inference.yml").write_bytes((exported / "inference.yml").read_bytes())
    forget_files(tmp_path)
    with pytest.raises(UserError, match=r"no model; expected one of inference\.json"):
        Predictor(tmp_path)
    (program,) = [each for each in exported.iterdir() if each.suffix in (".json", ".pdmodel")]
    (tmp_path / program.name).write_bytes(program.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"inference.pdiparams: no such file"):
        Predictor(tmp_path, device="cpu")
    (tmp_path / "inference.pdiparams").write_bytes((exported / "inference.pdiparams").read_bytes())
    with pytest.raises(UserError, match=rf"{re.escape(program.name)}: not an exported network: damaged: "):
        Predictor(tmp_path, device="cpu")
    large = (exported / "inference.yml").read_text().replace("resize_short: 36", "resize_short: 60000")
    (tmp_path / "inference.yml").write_text(large)
    with pytest.raises(ConfigError, match=r"resize_short: expected an integer > 0 and <= 16384, got 60000"):
        Predictor(tmp_path)
    description = yaml.safe_load((exported / "inference.yml").read_text())
    for shape, found in (
        ([-1, 3, 100_000, 8], r"Input\.shape\[2\]: expected an integer >= -1 and <= 16384, got 100000"),
        ([-1, 64, 16_384, 16_384], "at most 268435456 values per image"),
        ([-1, 3, 0, 8], "expected lengths > 0"),
    ):
        tree = {**description, "Input": {**description["Input"], "shape": shape}}
        (tmp_path / "inference.yml").write_text(yaml.safe_dump(tree))
        with pytest.raises(ConfigError, match=found):
            Predictor(tmp_path)
    (tmp_path / "inference.yml").write_text("Input: {name: x}\n")
    with pytest.raises(ConfigError, match=r"Input\.shape: missing"):
        Predictor(tmp_path)


def test_threshold_decides_between_two_classes(tmp_path: Path, images: list[bytes]) -> None:
    import paddle

    from ppcls.arch.build import build_model
    from ppcls.weights.files import write_arrays

    paddle.seed(3)
    weights = tmp_path / "two.safetensors"
    write_arrays(weights, build_model(**arch_tree(), class_num=2).state_dict())
    tree = config_tree(weights, None)
    tree["Arch"]["class_num"] = 2
    names = {"label_0": "nobody", "label_1": "someone"}
    for threshold, chosen in ((0.0, 1), (1.0, 0)):
        tree["Infer"]["PostProcess"] = {"name": "ThreshOutput", "threshold": threshold, **names}
        found = Predictor(validate(tree, "test")).predict(images[:1])
        assert found[0].class_ids == (chosen,)
        assert found[0].names == (list(names.values())[chosen],)
    folder = tmp_path / "inference"
    config = write_config(tmp_path / "config.yaml", tree)
    assert export_cli.export(["-c", str(config), "-o", f"Global.save_inference_dir={folder}"]) == 0
    assert Predictor(folder, device="cpu").predict(images[:1])[0].names == ("nobody",)


def test_threshold_per_class_chooses_labels(tree: dict[str, Any], images: list[bytes]) -> None:
    thresholds = [1.0, 0.0, 0.0]
    spec = {"name": "MultiLabelThreshOutput", "threshold": thresholds}
    changed = {**tree, "Infer": {**tree["Infer"], "PostProcess": spec}}
    assert set(Predictor(validate(changed, "test")).predict(images[:1])[0].class_ids) == {1, 2}


def test_scores_are_the_rounded_outputs_of_the_model(tmp_path: Path, images: list[bytes]) -> None:
    import paddle

    from ppcls.arch.build import build_model
    from ppcls.weights.files import write_arrays

    paddle.seed(3)
    model, weights = build_model(**arch_tree(), class_num=3), tmp_path / "three.safetensors"
    write_arrays(weights, model.state_dict())
    model.eval()
    tree = config_tree(weights, None)
    tree["Infer"]["PostProcess"] = {"name": "ScoreOutput", "decimal_places": 3}
    predictor = Predictor(validate(tree, "test"))
    expected = model(paddle.to_tensor(predictor.prepare(images[0])[None])).numpy()[0].astype("float64")
    (found,) = predictor.predict(images[:1])
    assert found.scores == tuple(np.round(expected, 3).tolist())
    assert found.as_tree()["scores"] == found.scores
    assert str(found) == ", ".join(map(str, found.scores))
    folder = tmp_path / "inference"
    config = write_config(tmp_path / "config.yaml", tree)
    assert export_cli.export(["-c", str(config), "-o", f"Global.save_inference_dir={folder}"]) == 0
    (exported,) = Predictor(folder, device="cpu").predict(images[:1])
    np.testing.assert_allclose(exported.scores, found.scores, atol=1.1e-3)

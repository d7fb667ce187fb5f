from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import (
    SELECTIONS,
    export_bundle,
    other_selection,
    prepared_by,
    read_bundle,
    write_photographs,
)
from small_classifier import config_tree, write_names
from tensorrt_operators import unsupported

from ppcls.cli.export import export, verify
from ppcls.deploy.bundle.golden import MeasuredDifferences, choose_tolerances
from ppcls.deploy.bundle.schema import read_values
from ppcls.deploy.bundle.verify import verify_outputs
from ppcls.deploy.models.description import Precision
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_bundle(tmp_path_factory.mktemp("bundle"))


def test_export_is_verified_and_predicts_the_same(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (bundle, bundle.with_name("bundle.zip")):
        assert verify([str(path)]) == 0
        assert "PASS: 4 of 4, largest difference " in capsys.readouterr().out
    assert verify([str(bundle / "inference.onnx")]) == 2
    assert "found a file of one; use its folder" in capsys.readouterr().err
    for name, advice in (("bundle.json", "name the folder"), ("../bundle.zip", "verify .* --extract")):
        with pytest.raises(UserError, match=advice):
            Predictor(bundle / name, device="cpu")
    files = sorted(write_photographs(tmp_path / "other", 5).iterdir())
    images = [file.read_bytes() for file in files]
    expected = Predictor(bundle.parent / "config.yaml").predict(images)
    actual = Predictor(bundle, device="cpu").predict(images)
    assert [result.class_ids for result in actual] == [result.class_ids for result in expected]
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
    runner = subprocess.run(
        [sys.executable, bundle / "runners/python/predict.py", *files], capture_output=True, text=True
    )
    assert runner.returncode == 0, runner.stderr
    for line, result, file in zip(runner.stdout.splitlines(), expected, files, strict=True):
        assert result.names is not None
        answer = ", ".join(
            f"{name} {score:.2%}" for name, score in zip(result.names, result.scores, strict=True)
        )
        assert line == f"{file}: {answer}"


def test_python_runner_verifies_the_bundle(bundle: Path) -> None:
    program = str(bundle / "runners/python/predict.py")
    runner = subprocess.run([sys.executable, program, "verify"], capture_output=True, text=True)
    assert runner.stdout.startswith("PASS: 4 of 4, largest difference "), runner.stderr


@pytest.mark.parametrize(("method", "near", "expected"), SELECTIONS)
def test_python_runner_accepts_other_classes_only_if_they_are_nearly_tied(
    bundle: Path, method: str, near: bool, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = runpy.run_path(str(bundle / "runners/python/predict.py"))
    with other_selection(bundle, method, near):
        assert program["BundleRunner"](bundle).verify() == near
    assert capsys.readouterr().out.startswith(expected)


@pytest.mark.parametrize("name", ["bundle", "pillow_bundle"])
def test_operators_are_documented_by_tensorrt(name: str, request: pytest.FixtureRequest) -> None:
    assert unsupported(request.getfixturevalue(name) / "inference.onnx") == []


# Changed settings of `prepared_by`, the order of the channels, and the stages whose outputs are saved
PROGRAMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "as expected": ({}, "RGB", "PASS"),
    "wrong mean": ({"mean": (0.485, 0.456, 0.406)}, "RGB", "resizing: .*normalization differs"),
    "wrong standard deviation": ({"std": (0.25, 0.25, 0.25)}, "RGB", "resizing: .*normalization differs"),
    "BGR": ({}, "BGR", "decoding: .*BGR order"),
    "another resizing": ({"antialias": None}, "RGB", "resizing: .*another resizing"),
    "no crop": ({"short": 32}, "RGB", "resizing: .*another (resizing|part of the image)"),
    "missing crop": ({"crop": None}, "RGB", "resizing: expected the shape .*check the size"),
    "larger crop": ({"crop": 36}, "RGB", "resizing: expected the shape .*check the size"),
}


@pytest.fixture(scope="module")
def pillow_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pillow")
    tree = config_tree(folder / "model.safetensors", write_names(folder / "names.txt"))
    tree["Infer"]["transforms"][1]["ResizeImage"].update(backend="pil", interpolation="bicubic")
    return export_bundle(folder, tree=tree)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["cv2", "pil"])
def test_first_stage_of_another_program_that_differs_is_named(
    backend: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue("bundle" if backend == "cv2" else "pillow_bundle")
    changed, order, expected = PROGRAMS[name]
    is_pillow = (backend == "pil") != ("antialias" in changed)
    settings = {**changed, "antialias": is_pillow}
    content = read_bundle(folder)
    (tmp_path / "both").mkdir()
    (tmp_path / "prepared").mkdir()
    for sample in content.golden:
        stem = Path(sample.image).stem
        pixels = read_values(folder, sample.decoded, (sample.height, sample.width, 3), "uint8")
        decoded = pixels if order == "RGB" else pixels[:, :, ::-1]
        np.save(tmp_path / "both" / f"{stem}.decoded.npy", decoded)
        for outputs in ("both", "prepared"):
            np.save(tmp_path / outputs / f"{stem}.prepared.npy", prepared_by(decoded, **settings))
    report = verify_outputs(folder, content, tmp_path / "both")
    assert report.passed == (expected == "PASS")
    assert re.search(expected, str(report)), report
    report = verify_outputs(folder, content, tmp_path / "prepared")
    assert re.search(expected.replace("decoding", "resizing"), str(report)), report
    assert not report.passed or str(report).endswith("; no probabilities were compared")


def test_outputs_of_another_program_that_differ_are_an_error(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = read_bundle(bundle).golden[0]
    np.save(tmp_path / "00.decoded.npy", np.zeros((sample.height, sample.width, 3), np.uint8))
    assert verify([str(bundle), "--outputs", str(tmp_path)]) == 3
    assert "first stage that differs: decoding" in "".join(capsys.readouterr())
    assert verify([str(bundle), "--outputs", str(tmp_path), "--stage", "network"]) == 2
    assert "expected files such as 00.logits.npy" in capsys.readouterr().err


def test_wrong_options_are_rejected(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(bundle.parent / "config.yaml")
    for options, reason in (
        (["--runners", "pyton"], "unknown runner 'pyton'; did you mean 'python'?"),
        (["--output", str(bundle)], "exists already and is not overwritten"),
        (["--golden-data", config], "config.yaml"),
        (["--output", str(tmp_path / "new")], "--golden-data FOLDER"),
    ):
        assert export(["-c", config, "--format", "bundle", *options]) == 2
        assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# Precision, whether OpenVINO was measured, and the tolerance of a probability if engines differ by 0.005
TOLERANCES = (("float32", False, 0.02), ("int8", True, 0.02), ("int8", False, 0.05))


@pytest.mark.parametrize(("precision", "has_openvino", "expected"), TOLERANCES)
def test_tolerance_depends_on_the_measured_engines(
    precision: Precision, has_openvino: bool, expected: float
) -> None:
    differences = MeasuredDifferences(0.01, 0.005, 0.0, 0.0, has_openvino)
    tolerances = choose_tolerances(differences, [], [], precision)
    assert tolerances.probabilities == expected
    assert tolerances.logits >= (0.05 if precision == "int8" and not has_openvino else 0.01)


def test_images_that_cannot_be_golden_samples_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs/empty.jpg").touch()
    folder = export_bundle(tmp_path)
    assert len(read_bundle(folder).golden) == 4
    warning = "warning: 1 of 5 images cannot be golden samples: .*empty.jpg: the file is empty"
    assert re.search(warning, capsys.readouterr().err)


def test_card_and_description_are_complete(bundle: Path) -> None:
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert "3: cat, great white shark, café" in card
    tree = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    assert tree["classes"] == ["cat", "great white shark", "café"]
    assert {"inference.onnx", "inference.yml", "golden/00.decoded.bin"} <= tree["files"].keys()


def test_float16_bundle_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppcls.cli.export._COARSE", 1e-4)
    folder = export_bundle(tmp_path, "--precision", "float16")
    printed = capsys.readouterr()
    assert re.search(r"difference of a probability: \S+ from the trained model, \S+ between", printed.out)
    assert "allows probabilities to differ by 0.001; try --precision float32" in printed.err
    assert verify([str(folder), "--stage", "network"]) == 0
    assert "PASS: 4 of 4" in capsys.readouterr().out
    assert read_bundle(folder).tolerances.probabilities >= 1e-3
    assert unsupported(folder / "inference.onnx") == []

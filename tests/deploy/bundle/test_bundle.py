from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bundles import export_bundle, prepared_by, read_bundle, write_photographs

from ppcls.cli.export import export, verify
from ppcls.deploy.bundle.schema import read_values
from ppcls.deploy.predictor import Predictor


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_bundle(tmp_path_factory.mktemp("bundle"))


def test_export_is_verified_and_predicts_the_same(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (bundle, bundle.with_name("bundle.zip")):
        assert verify([str(path)]) == 0
        assert "PASS: 4 of 4, largest difference " in capsys.readouterr().out
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


PROGRAMS = {
    "as expected": ({}, "RGB", "PASS"),
    "wrong mean": ({"mean": (0.485, 0.456, 0.406)}, "RGB", "resizing: .*normalization differs"),
    "BGR": ({}, "BGR", "decoding: .*BGR order"),
    "another resizing": ({"antialias": True}, "RGB", "resizing: .*another resizing"),
    "no crop": ({"short": 32}, "RGB", "resizing: .*another (resizing|part of the image)"),
    "larger crop": ({"crop": 36}, "RGB", "resizing: expected the shape .*check the size"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_stage_of_another_program_that_differs_is_named(
    bundle: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, order, expected = PROGRAMS[name]
    content = read_bundle(bundle)
    for sample in content.golden:
        stem = tmp_path / Path(sample.image).stem
        pixels = read_values(bundle, sample.decoded, (sample.height, sample.width, 3), "uint8")
        decoded = pixels if order == "RGB" else pixels[:, :, ::-1]
        np.save(f"{stem}.decoded.npy", decoded)
        np.save(f"{stem}.prepared.npy", prepared_by(decoded, **settings))  # type: ignore[arg-type]
    code = verify([str(bundle), "--outputs", str(tmp_path)])
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert code == (0 if expected == "PASS" else 3), text
    assert re.search(expected, text), text


def test_wrong_options_are_rejected(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(bundle.parent / "config.yaml")
    for options, reason in (
        (["--runners", "pyton"], "unknown runner 'pyton'; did you mean 'python'?"),
        (["--output", str(bundle)], "exists already and is not overwritten"),
        (["--golden-data", config], "config.yaml"),
        (["--output", str(tmp_path / "new")], "--golden-data FOLDER"),
    ):
        assert export(["-c", config, "--format", "bundle", *options]) == 1
        assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_card_and_description_are_complete(bundle: Path) -> None:
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert "3: cat, great white shark, café" in card
    tree = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    assert tree["classes"] == ["cat", "great white shark", "café"]
    assert {"inference.onnx", "inference.yml", "golden/00.decoded.bin"} <= tree["files"].keys()


def test_float16_bundle_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = export_bundle(tmp_path, "--precision", "float16")
    assert verify([str(folder), "--stage", "network"]) == 0
    assert "PASS: 4 of 4" in capsys.readouterr().out
    assert read_bundle(folder).tolerances.probabilities >= 1e-3

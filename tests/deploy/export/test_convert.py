"""``ppcls export --from``: files of other tools are converted, bundled, or rejected with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import write_photographs
from foreign_onnx import write_onnx
from small_classifier import write_image

from ppcls.cli.export import export
from ppcls.deploy.models.programs.formats import check_version
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError

KINDS: dict[str, dict[str, Any]] = {
    "logits, one image per batch": {"opset": 11, "batch": 1},
    "probabilities, channels last": {"opset": 13, "layout": "NHWC", "activation": "Softmax"},
    "new operators": {"opset": 19},
    "several labels": {"activation": "Sigmoid"},
}


def softmax(values: np.ndarray) -> np.ndarray:
    shares = np.exp(values - values.max())
    return np.asarray(shares / shares.sum())


@pytest.mark.parametrize("name", KINDS)
def test_onnx_of_other_tools_is_converted(name: str, tmp_path: Path) -> None:
    import onnxruntime

    file = write_onnx(tmp_path / "mine.onnx", **KINDS[name])
    assert export(["--from", str(file), "--format", "onnx", "--output", str(tmp_path / "new")]) == 0
    images = [write_image(tmp_path / f"{side}.png", side, side, 90).read_bytes() for side in (70, 80, 100)]
    predictor = Predictor(tmp_path / "new", device="cpu")
    prepared = [predictor.prepare(image) for image in images]
    actual = predictor.run(prepared)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for scores, image in zip(actual, prepared, strict=True):
        expected = session.run(None, {"input": image[None]})[0][0]
        expected = softmax(expected) if "activation" not in KINDS[name] else expected
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    original = Predictor(file, device="cpu").predict(images)
    assert [each.class_ids for each in original] == [each.class_ids for each in predictor.predict(images)]


@pytest.mark.parametrize("kind", [{"opset": 13, "layout": "NHWC"}, {"opset": 11, "batch": 1}])
def test_onnx_of_other_tools_is_bundled(
    kind: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_onnx(tmp_path / "mine.onnx", **kind)
    words = ["--from", str(file), "--format", "bundle", "--output", str(tmp_path / "new")]
    photos = write_photographs(tmp_path / "photos")
    assert export([*words, "--golden-data", str(photos)]) == 0
    assert "[Export] verified: PASS: 4 of 4" in capsys.readouterr().out
    images = [photo.read_bytes() for photo in sorted(photos.iterdir())]
    original, bundle = (Predictor(path, device="cpu").predict(images) for path in (file, tmp_path / "new"))
    for one, other in zip(original, bundle, strict=True):
        assert one.class_ids == other.class_ids
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    assert export(words) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err


REJECTED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "operator of a library": ({"domain": "acme"}, [], "1 operator is not part of ONNX Runtime.*acme.Magic"),
    "pixels": ({"dtype": "UINT8"}, [], "expected an input of float32 values, found UINT8"),
    "any size": ({"side": "s"}, [], "expected the file inference.yml, because the input"),
    "other transforms": (
        {},
        ["-o", "Infer.transforms=[{DecodeImage: {}}, {ResizeImage: {size: 48}}, {NormalizeImage: {}}]"],
        r"Infer.transforms return images of shape \[3, 48, 48\], but the model expects \[3, 64, 64\]",
    ),
    "precision": ({}, ["--precision", "int8"], "--precision int8: needs a checkpoint"),
    "format": ({}, ["--format", "openvino"], "already exported; use --format onnx or --format bundle"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_cannot_be_converted_is_rejected_with_a_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    settings, options, reason = REJECTED[name]
    file = write_onnx(tmp_path / "mine.onnx", **settings)
    words = ["--from", str(file), "--format", "onnx", "--output", str(tmp_path / "new"), *options]
    assert export(words) == 2
    message = capsys.readouterr().err
    assert re.search(reason, message), message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["__model__"], "Paddle 1 writes __model__"),
        (["model.pdmodel", "model.pdiparams"], "rename model.pdmodel"),
        (["mine.onnx"], "name the file mine.onnx instead of its folder"),
        (["model.pdparams"], "contains only weights"),
        (["inference.safetensors"], "inference.safetensors needs the file inference.yml"),
    ],
)
def test_files_in_other_formats_are_explained(
    names: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert export(["--from", str(tmp_path), "--format", "onnx", "--output", str(tmp_path / "new")]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(("version", "fits"), [("2.6.2", False), ("3.3.1", True)])
def test_message_names_the_version_that_writes_a_format(
    version: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / f"paddlepaddle-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: paddlepaddle\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if fits:
        check_version(tmp_path / "inference.json")
        return
    with pytest.raises(
        UserError, match=r"Paddle 2\.6\.2 cannot read this format\. Paddle 3 writes inference\.json"
    ):
        check_version(tmp_path / "inference.json")

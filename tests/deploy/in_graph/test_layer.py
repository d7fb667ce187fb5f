from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from small_classifier import config_tree, write_config, write_image, write_names, write_weights

from ppcls.cli import export as export_cli
from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    ResizeImage,
    ToCHWImage,
    plan_chain,
    split_chain,
)
from ppcls.data.transforms.specs.geometry import Pad
from ppcls.deploy.in_graph.layer import PreprocessingLayer
from ppcls.deploy.infer import predict_files
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime
from ppcls.serve.service import load

NORMALIZE = NormalizeImage(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
CHAINS = {
    "usual": [
        DecodeImage(),
        ResizeImage(resize_short=36),
        CropImage(size=(31, 32)),
        NORMALIZE,
        ToCHWImage(),
    ],
    "stretched": [DecodeImage(), ResizeImage(size=(40, 23)), NORMALIZE],
    "Pillow": [
        DecodeImage(),
        ResizeImage(resize_short=37, interpolation="bicubic", backend="pil"),
        CropImage(size=(31, 32)),
        NORMALIZE,
        ToCHWImage(),
    ],
    "bilinear of Pillow": [DecodeImage(), ResizeImage(size=(40, 23), backend="pil"), NORMALIZE],
    "Lanczos of Pillow": [
        DecodeImage(),
        ResizeImage(size=(9, 50), interpolation="lanczos", backend="pil"),
        NORMALIZE,
    ],
    "BGR": [
        DecodeImage(to_rgb=False),
        ResizeImage(resize_short=64),
        CropImage(size=33),
        NORMALIZE.model_copy(update={"channel_num": 4, "output_fp16": True}),
    ],
}


@pytest.mark.parametrize("name", CHAINS)
@given(height=st.integers(1, 120), width=st.integers(1, 120), seed=st.integers(0, 99))
def test_preprocessing_layer_equals_the_loader(name: str, height: int, width: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    chain = CHAINS[name]
    layout = "CHW" if isinstance(chain[-1], ToCHWImage) else "HWC"
    expected = run_on_pixels(plan_chain(chain, layout), image)
    found = PreprocessingLayer(chain)(paddle.to_tensor(image[None])).numpy()
    # Paddle 2.6 rounds to float16 towards zero on a CPU.
    rounding = 2.0**-10 if expected.dtype == np.float16 else 0
    np.testing.assert_allclose(found[0], expected.astype(np.float32), rtol=rounding)


@pytest.mark.parametrize(
    ("position", "spec", "reason"),
    [
        (0, DecodeImage(dtype="uint16"), r"the graph expects 8-bit RGB"),
        (0, DecodeImage(channels=1), r"the graph expects 8-bit RGB"),
        (
            1,
            ResizeImage(resize_short=36, backend="pil", interpolation="nearest"),
            r"interpolation: nearest is not supported",
        ),
    ],
)
def test_unsupported_transform_is_an_error(position: int, spec: Any, reason: str) -> None:
    chain = list(CHAINS["usual"])
    chain[position] = spec
    with pytest.raises(
        UserError, match=rf"Infer.transforms\[{position}\]\.{spec.kind}: cannot be part of .*: {reason}"
    ):
        PreprocessingLayer(chain)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "model.safetensors")


def export(folder: Path, tree: dict[str, Any], kind: str, *preprocess: str) -> int:
    config = write_config(folder / "config.yaml", tree)
    options = ["-o", f"Global.save_inference_dir={folder / kind}"]
    return export_cli.export(["-c", str(config), "--format", kind, "--preprocess", *preprocess, *options])


@pytest.mark.parametrize(
    ("kind", "contained", "shape"),
    [
        ("paddle", True, "[-1, -1, -1, 3]"),
        ("onnx", True, "[-1, -1, -1, 3]"),
        pytest.param("paddle", "normalize", "[-1, 32, 32, 3]", marks=pytest.mark.slow),
        ("onnx", "normalize", "[-1, 32, 32, 3]"),
    ],
)
def test_export_with_preprocessing_predicts_the_same(
    tmp_path: Path,
    weights: Path,
    kind: str,
    contained: bool | str,
    shape: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = config_tree(weights, write_names(tmp_path / "names.txt"), "NHWC")
    assert export(tmp_path, tree, kind, *([] if contained is True else ["normalize"])) == 0
    said = capsys.readouterr().out
    assert f"input {shape} uint8 NHWC, any batch size" in said
    assert (
        "[Export] checked: the relative difference between the logarithms of the scores of the exported and "
        in said
    )
    sizes = [(61, 45), (40, 50), (61, 45), (32, 200), (20, 21)]
    files = [write_image(tmp_path / f"{i}.png", i, *size) for i, size in enumerate(sizes)]
    images = [file.read_bytes() for file in files]
    expected = Predictor(tmp_path / "config.yaml").predict(images)
    predictor = Predictor(tmp_path / kind, device="cpu")
    results = predictor.predict(images)
    assert [each.class_ids for each in results] == [each.class_ids for each in expected]
    np.testing.assert_allclose(
        [each.scores for each in results], [each.scores for each in expected], atol=1e-5
    )
    content = yaml.safe_load((tmp_path / kind / "inference.yml").read_text())
    assert content["PreProcess"]["in_graph"] == contained
    served = load(find_source(tmp_path / kind, ["Global.device=cpu"]), 4)
    assert [each.class_ids for each in served.predict(images)] == [each.class_ids for each in expected]
    if contained is True:
        by_dali = Predictor(tmp_path / kind, device="cpu", overrides=["Global.use_dali=True"])
        with pytest.raises(UserError, match="DALI cannot load images for a model that resizes them itself"):
            predict_files(by_dali, files, Runtime())


def test_export_with_unsupported_transform_writes_nothing(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = config_tree(weights, None)
    tree["Infer"]["transforms"].insert(2, {"Pad": {"padding": 2}})
    assert export(tmp_path, tree, "paddle") == 2
    assert capsys.readouterr().err == (
        "error: Infer.transforms[2].Pad: cannot be part of the exported graph: this transform is not "
        "supported; export without --preprocess, and prepare the images as inference.yml describes\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("position", "transform", "message"),
    [
        (4, {"Pad": {"padding": 2}}, "Pad after NormalizeImage is not supported"),
        (0, {"DecodeImage": {"to_rgb": False}}, "Pad on BGR images is not supported"),
        (0, {"DecodeImage": {"channels": 1}}, "expected images that DecodeImage decodes to 8-bit RGB or BGR"),
    ],
)
def test_split_chain_unsupported_transform_is_an_error(
    position: int, transform: dict[str, Any], message: str
) -> None:
    chain: list[Any] = [DecodeImage(), Pad(padding=2), NORMALIZE, ToCHWImage()]
    (name, values), *_ = transform.items()
    spec = {"Pad": Pad, "DecodeImage": DecodeImage}[name](**values)
    chain[position : position + 1] = [spec]
    with pytest.raises(ValueError, match=message):
        split_chain(chain)


def test_split_chain_converts_bgr_in_the_model() -> None:
    chain = [DecodeImage(to_rgb=False), ResizeImage(size=(40, 23)), NORMALIZE, ToCHWImage()]
    before, after = split_chain(chain)
    assert before == (DecodeImage(to_rgb=True), chain[1])
    assert after == (chain[0], NORMALIZE, ToCHWImage())
    image = np.random.default_rng(0).integers(0, 256, (30, 50, 3)).astype(np.uint8)
    pixels = run_on_pixels(plan_chain(before, "HWC"), image)
    found = PreprocessingLayer(after)(paddle.to_tensor(pixels[None])).numpy()
    np.testing.assert_array_equal(found[0], run_on_pixels(plan_chain(chain, "CHW"), image))

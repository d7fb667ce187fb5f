"""Models that ppcls exports for itself, as an architecture and weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from safetensors.numpy import load_file
from small_classifier import (
    NAME,
    OPTIONS,
    config_tree,
    forget_files,
    write_config,
    write_image,
    write_names,
    write_weights,
)
from small_embedding import embedding_tree, write_model

from benchmarks.infer.random_models import write_random_models
from benchmarks.pytorch.candidates import TIMM_MODELS
from ppcls.arch.build import build_model
from ppcls.arch.section import Arch
from ppcls.cli import export as export_cli
from ppcls.cli import infer as infer_cli
from ppcls.deploy.models.description import read_description
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.weights.files import write_arrays
from ppcls.zoo import ZOO

FILE = "inference.safetensors"
# Probabilities. The exported network is in NHWC, whose kernels round differently.
FLOAT32 = 1e-5
FLOAT16 = 5e-3
SMALL = [{"DecodeImage": None}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": None}]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("images")
    return [write_image(folder / f"{seed}.png", seed).read_bytes() for seed in range(4)]


def classifier(folder: Path, layout: str = "NCHW") -> dict[str, Any]:
    weights = write_weights(folder / "model.safetensors")
    return config_tree(weights, write_names(folder / "names.txt"), layout)


def export(tree: dict[str, Any], folder: Path, *options: str) -> int:
    """Exports for ppcls into ``folder/out``."""
    config = str(write_config(folder / "config.yaml", tree))
    return export_cli.export(
        ["-c", config, "--format", "ppcls", *options, "-o", f"Global.save_inference_dir={folder / 'out'}"]
    )


def scores(predictor: Predictor, images: Sequence[bytes | np.ndarray]) -> np.ndarray:
    return np.stack(predictor.run([predictor.prepare(image) for image in images]))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float32", FLOAT32), ("float16", FLOAT16), ("bfloat16", FLOAT32)]
)
def test_exported_network_has_the_scores_of_the_model(
    tmp_path: Path, images: list[bytes], layout: str, precision: str, tolerance: float
) -> None:
    tree = classifier(tmp_path, layout)
    assert export(tree, tmp_path, "--precision", precision) == 0
    trained = Predictor(tmp_path / "config.yaml")
    exported = Predictor(tmp_path / "out", device="cpu")
    difference = np.abs(scores(exported, images) - scores(trained, images)).max()
    assert difference < tolerance
    assert exported.names == trained.names
    assert exported.description.precision == precision


def test_exported_embedding_model_has_the_embeddings_of_the_model(
    tmp_path: Path, images: list[bytes]
) -> None:
    tree = embedding_tree(tmp_path / "model.safetensors")
    write_model(tree)
    assert export(tree, tmp_path) == 0
    expected = scores(Predictor(tmp_path / "config.yaml"), images)
    assert np.abs(scores(Predictor(tmp_path / "out", device="cpu"), images) - expected).max() < FLOAT32
    described = yaml.safe_load((tmp_path / "out/inference.yml").read_text(encoding="utf-8"))
    assert {"name", "Backbone", "Neck"} <= described["Arch"].keys()
    assert "Head" not in described["Arch"]
    assert not [name for name in load_file(tmp_path / "out" / FILE) if name.startswith("head.")]


def test_exported_student_needs_neither_teacher_nor_initial_weights(
    tmp_path: Path, images: list[bytes]
) -> None:
    tree = classifier(tmp_path)
    plain = {key: value for key, value in tree["Arch"].items() if key not in ("class_num", "data_format")}
    weights = str(tmp_path / "model.safetensors")
    student = {"Student": {**plain, "pretrained": weights}}
    teacher = {"Teacher": {**plain, "pretrained": weights}}
    tree["Arch"] = {
        "name": "DistillationModel",
        "class_num": 3,
        "models": [teacher, student],
        "freeze_params_list": [True, False],
    }
    tree["Loss"] = {"Train": [{"DistillationCELoss": {"model_name_pairs": [["Student", "Teacher"]]}}]}
    assert export(tree, tmp_path) == 0
    (tmp_path / "model.safetensors").rename(tmp_path / "moved.safetensors")
    described = yaml.safe_load((tmp_path / "out/inference.yml").read_text(encoding="utf-8"))
    expected = {"name": NAME, "class_num": 3, "data_format": "NHWC", "input_image_channel": 3, **OPTIONS}
    assert expected.items() <= described["Arch"].items()
    assert "pretrained" not in described["Arch"]
    assert len(Predictor(tmp_path / "out", device="cpu").predict(images)) == len(images)


def test_descriptions_of_all_architectures_are_read_as_written(tmp_path: Path) -> None:
    assert export(classifier(tmp_path), tmp_path) == 0
    description = read_description(tmp_path / "out")
    for name in (name for name, entry in ZOO.items() if not entry.fixed_input):
        arch = Arch(name=name, class_num=3, data_format="NHWC")
        written = yaml.safe_load(description.with_arch(arch).as_yaml())
        assert Arch.model_validate(written["Arch"]) == arch


def test_float16_halves_the_file(tmp_path: Path) -> None:
    tree = classifier(tmp_path)
    sizes = {}
    for precision in ("float32", "float16"):
        folder = tmp_path / precision
        folder.mkdir()
        assert export(tree, folder, "--precision", precision) == 0
        sizes[precision] = (folder / "out" / FILE).stat().st_size
        kernels = [array for array in load_file(folder / "out" / FILE).values() if array.ndim > 1]
        assert {array.dtype for array in kernels} == {np.dtype(precision)}
    assert sizes["float16"] < 0.6 * sizes["float32"]


def test_weight_beyond_float16_is_an_error_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build_model(NAME, class_num=3, **OPTIONS)
    with paddle.no_grad():
        model.fc.weight.set_value(paddle.full_like(model.fc.weight, 1e5))
    write_arrays(tmp_path / "large.safetensors", model.state_dict())
    tree = config_tree(tmp_path / "large.safetensors", None)
    assert export(tree, tmp_path, "--precision", "float16") == 2
    assert "fc.weight contains 1e+05, which float16 cannot represent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--precision", "int8"], "--precision int8 needs --format onnx or openvino, got ppcls"),
        (["--preprocess", "normalize"], "--preprocess normalize: ppcls prepares the images"),
        (["--preprocess"], "--preprocess all: ppcls prepares the images"),
    ],
)
def test_option_without_effect_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    assert export(classifier(tmp_path), tmp_path, *options) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_architecture_of_the_user_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(
        "from paddle import nn\n"
        "from ppcls.config.custom import register_architecture\n\n"
        "register_architecture('OwnNetwork', 'own_network:own_network')\n\n"
        "def own_network(class_num, **_options):\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(3, class_num))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    tree = classifier(tmp_path)
    tree["Global"]["import_modules"] = ["own_network"]
    tree["Arch"] = {"name": "OwnNetwork", "class_num": 3}
    assert export(tree, tmp_path) == 2
    assert "Arch.name: OwnNetwork is not part of ppcls" in capsys.readouterr().err


def test_exported_network_cannot_be_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(classifier(tmp_path), tmp_path) == 0
    capsys.readouterr()
    out = str(tmp_path / "onnx")
    assert export_cli.export(["--from", str(tmp_path / "out"), "--format", "onnx", "--output", out]) == 2
    assert "already exported; start from its checkpoint folder" in capsys.readouterr().err


def test_commands_accept_the_folder_and_its_file_without_trust(
    tmp_path: Path, images: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(classifier(tmp_path), tmp_path, "--precision", "float16") == 0
    (tmp_path / "image.png").write_bytes(images[0])
    printed = []
    for model in (tmp_path / "out", tmp_path / "out" / FILE):
        capsys.readouterr()
        assert infer_cli.infer(["--model", str(model), str(tmp_path / "image.png"), "--device", "cpu"]) == 0
        streams = capsys.readouterr()
        printed.append(streams.out)
        assert f"[Infer] {NAME} by Paddle {paddle.__version__} (CPU, float32)" in streams.err
    assert printed[0] == printed[1]
    assert printed[0].startswith(f"{tmp_path / 'image.png'}: ")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pretrained": "/etc/passwd"}, r"Arch.pretrained: not supported in the description of a model"),
        ({"class_num": 5}, "Arch has 5 classes, but Output.shape has 3"),
        ({"data_format": "NCHW"}, r"Input is \[-1, 32, 32, 3\] NHWC, expected \[-1, 3, 32, 32\] NCHW"),
        ({"input_image_channel": 1}, "transform_ops return 3 channels, but Arch.input_image_channel is 1"),
        ({"name": "ResNet18"}, "weights of another model"),
        ({"name": "Nothing"}, "unknown architecture 'Nothing'"),
        ({"depth": 16}, "weights of another model"),
        ({"depth": 6_000_004}, "Arch.depth: expected an integer > 0 and <= 10000, got 6000004"),
        ({"widen_factor": 10**9}, "Arch.widen_factor: expected an integer > 0 and <= 1000000"),
        (None, "expected a section Arch for inference.safetensors"),
    ],
    ids=["path", "classes", "layout", "channels", "name", "unknown", "option", "depth", "width", "none"],
)
def test_description_of_another_network_is_an_error(
    tmp_path: Path, images: list[bytes], changes: dict[str, Any] | None, reason: str
) -> None:
    assert export(classifier(tmp_path), tmp_path) == 0
    file = tmp_path / "out/inference.yml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    if changes is None:
        del tree["Arch"]
    else:
        tree["Arch"] |= changes
        if changes.get("name") not in (None, NAME):
            tree["Arch"] = {key: value for key, value in tree["Arch"].items() if key not in OPTIONS}
    write_config(file, tree)
    forget_files(tmp_path / "out")
    with pytest.raises(UserError, match=reason):
        Predictor(tmp_path / "out", device="cpu").predict(images)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("section", "changes", "reason"),
    [
        ("Export", {"precision": "int8"}, "Export.precision is int8, but a model with Arch can be float32"),
        ("Input", {"shape": [-1, 9000, 9000, 3]}, r"Input is \[-1, 9000, 9000, 3\] NHWC"),
        ("PreProcess", {"in_graph": "normalize"}, "in_graph is normalize, expected False"),
        ("Output", {"normalized": False}, "Output.normalized is False, expected True"),
        ("Rejection", {"score": "distance", "threshold": 0.5}, "score is distance, expected max_probability"),
        ("PreProcess", {"transform_ops": SMALL}, "images of 8 x 8, but Arch.name=ViT_small_patch16_224"),
    ],
    ids=["precision", "input", "pixels", "logits", "rejection", "size"],
)
def test_description_that_the_network_contradicts_is_an_error(
    tmp_path: Path, section: str, changes: dict[str, Any], reason: str
) -> None:
    assert export(classifier(tmp_path), tmp_path) == 0
    file = tmp_path / "out/inference.yml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    tree[section] = {**tree.get(section, {}), **changes}
    if section == "PreProcess" and "in_graph" in changes:
        tree["Input"]["dtype"] = "uint8"
    if changes.get("transform_ops") is SMALL:
        tree["Arch"] = {"name": "ViT_small_patch16_224", "class_num": 3, "data_format": "NHWC"}
    write_config(file, tree)
    with pytest.raises(UserError, match=reason):
        find_source(tmp_path / "out")


@pytest.mark.hostile
def test_network_that_does_not_fit_into_memory_is_an_error(tmp_path: Path) -> None:
    assert export(classifier(tmp_path), tmp_path) == 0
    file = tmp_path / "out/inference.yml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    tree["Arch"] = {"name": "ResNet18", "class_num": 10_000_000, "data_format": "NHWC"}
    tree["Output"]["shape"] = [-1, 10_000_000]
    del tree["PostProcess"]["Topk"]["label_list"]
    write_config(file, tree)
    code = (
        "import resource\n"
        "from ppcls.errors import UserError\n"
        "from ppcls.deploy.predictor import Predictor\n"
        "resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))\n"  # the last layer needs 20 GB
        "try:\n"
        f"    Predictor({str(tmp_path / 'out')!r}, device='cpu')\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert f"{FILE}: there is not enough memory for the network ResNet18" in result.stdout, result.stderr


@pytest.mark.hostile
def test_damaged_weights_are_an_error(tmp_path: Path) -> None:
    assert export(classifier(tmp_path), tmp_path) == 0
    file = tmp_path / "out" / FILE
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged or from another export"):
        find_source(tmp_path / "out")
    forget_files(tmp_path / "out")
    with pytest.raises(UserError, match=FILE):
        Predictor(tmp_path / "out", device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(TIMM_MODELS))
def test_exported_network_computes_in_float16_on_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (config,) = write_random_models([name], [], tmp_path)
    trained = Predictor(config, overrides=["Global.device=cpu", "AMP.use_amp=False"])
    (tmp_path / "exported").mkdir()
    (folder,) = write_random_models([name], [], tmp_path / "exported", exported=True)
    exported = Predictor(folder, device="gpu")
    assert exported.model.engine == f"Paddle {paddle.__version__} (GPU, AMP O2 float16)"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 224, 224, 3), np.uint8)
    logits = [np.log(scores(predictor, list(pixels))) for predictor in (trained, exported)]
    assert np.abs(logits[1] - logits[0]).max() < 0.05 * np.abs(logits[0]).max()
    assert "without the fused kernels" not in capsys.readouterr().err

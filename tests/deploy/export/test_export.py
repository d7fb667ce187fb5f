from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddle import nn
from paddle.nn.utils import weight_norm
from paths import ROOT
from pydantic import TypeAdapter
from small_classifier import CLASSES, NAME, config_tree, write_config, write_image, write_names, write_weights

from ppcls.arch.cost import count_parameters
from ppcls.arch.layers.reparameterize import reparameterize
from ppcls.cli import export as export_cli
from ppcls.data.transforms.base import FixedChain, check_chain
from ppcls.data.transforms.numpy_ops import Array, apply, run
from ppcls.data.transforms.specs import ToCHWImage, plan_chain
from ppcls.deploy.models.description import describe_model, read_description
from ppcls.engine.core.networks import build_network
from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.weights.files import fill_model, read_weights
from ppcls.weights.manifest import Manifest
from ppcls.weights.store import Store

TOOL = ROOT / "tools" / "export.py"
NO_DRAWS = np.zeros(0, np.float32)
LAYOUTS = ("NCHW", "NHWC")
# Probabilities. Inference folds batch norm into the convolutions, so sums round differently.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "model.safetensors")


def export(folder: Path, tree: dict[str, Any]) -> int:
    """Exports into ``folder/inference``."""
    tree["Global"]["save_inference_dir"] = str(folder / "inference")
    return export_cli.export(["-c", str(write_config(folder / "config.yaml", tree))])


@pytest.fixture(scope="module", params=LAYOUTS)
def exported(
    request: pytest.FixtureRequest, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Config]:
    """A folder that was exported from a model of either layout, and the config of what was written."""
    folder = tmp_path_factory.mktemp(request.param)
    tree = config_tree(weights, write_names(folder / "names.txt"), request.param)
    assert export(folder, tree) == 0
    tree["Arch"]["data_format"] = "NCHW"
    return folder / "inference", validate(tree, "test")


def read_yml(folder: Path) -> dict[str, Any]:
    content = yaml.safe_load((folder / "inference.yml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def program(folder: Path) -> Path:
    (found,) = [folder / name for name in ("inference.json", "inference.pdmodel") if (folder / name).exists()]
    return found


def predict(folder: Path, images: np.ndarray) -> np.ndarray:
    """Runs an exported model by Paddle Inference on the CPU, as a deployment does."""
    settings = paddle.inference.Config(str(program(folder)), str(folder / "inference.pdiparams"))
    settings.disable_gpu()
    settings.disable_glog_info()
    predictor = paddle.inference.create_predictor(settings)
    assert predictor.get_input_names() == [read_yml(folder)["Input"]["name"]]
    predictor.get_input_handle("x").copy_from_cpu(images)
    predictor.run()
    (output,) = predictor.get_output_names()
    scores = predictor.get_output_handle(output).copy_to_cpu()
    assert isinstance(scores, np.ndarray)
    return scores


def dynamic_scores(config: Config, images: np.ndarray) -> np.ndarray:
    """Returns [B, 3] float32 probabilities of the model that was exported, in dynamic mode."""
    model = build_network(config.Arch)
    source = Path(str(config.Global.pretrained_model))
    fill_model(model, read_weights(source), source)
    model.eval()
    scores = paddle.nn.functional.softmax(model(paddle.to_tensor(images))).numpy()
    assert isinstance(scores, np.ndarray)
    return scores


def prepare(config: Config, file: Path) -> Array:
    """Prepares an image as training's config says."""
    assert config.Infer is not None
    layout = "CHW" if config.Arch.data_format == "NCHW" else "HWC"
    return run(plan_chain(config.Infer.transforms, layout), file.read_bytes(), NO_DRAWS)


@pytest.mark.parametrize("batch", [1, 3])
def test_export_has_the_scores_of_the_model(
    exported: tuple[Path, Config], batch: int, tmp_path: Path
) -> None:
    folder, config = exported
    images = np.stack([prepare(config, write_image(tmp_path / f"{i}.png", i)) for i in range(batch)])
    scores = predict(folder, images)
    assert scores.shape == (batch, len(CLASSES))
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(scores, dynamic_scores(config, images), rtol=0, atol=TOLERANCE)


def rebuild(folder: Path, file: Path) -> Array:
    """Prepares an image by ``inference.yml`` alone: each transform in turn, none added or moved."""
    image: Any = file.read_bytes()
    for spec in TypeAdapter(FixedChain).validate_python(read_yml(folder)["PreProcess"]["transform_ops"]):
        image = apply(spec, image, ())
    return np.ascontiguousarray(image)


def test_inference_yml_prepares_the_same_input(exported: tuple[Path, Config], tmp_path: Path) -> None:
    folder, config = exported
    image = rebuild(folder, write_image(tmp_path / "photo.png", 5, height=61, width=45))
    np.testing.assert_array_equal(image, prepare(config, tmp_path / "photo.png"))
    described = read_yml(folder)["Input"]
    assert [-1, *image.shape] == described["shape"]
    assert str(image.dtype) == described["dtype"]
    assert described["layout"] == config.Arch.data_format


def test_inference_yml_describes_the_output(exported: tuple[Path, Config]) -> None:
    content = read_yml(exported[0])
    assert content["Global"] == {"model_name": NAME}
    assert content["PostProcess"] == {"Topk": {"topk": 2, "label_list": list(CLASSES)}}
    assert content["Output"] == {"shape": [-1, 3], "dtype": "float32", "activation": "softmax"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inference_yml_of_an_early_transpose_describes_the_executed_order(
    tmp_path: Path, weights: Path, layout: str
) -> None:
    from ppcls.deploy.models.description import describe_model

    tree = config_tree(weights, None, layout)
    tree["Infer"]["transforms"].insert(3, {"ToCHWImage": None})
    tree["Infer"]["transforms"][4]["NormalizeImage"]["order"] = "chw"
    config = validate(tree, "test")
    assert config.Infer is not None
    content = yaml.safe_load(describe_model(config.Arch, config.Infer, None).as_yaml())
    chain = TypeAdapter(FixedChain).validate_python(content["PreProcess"]["transform_ops"])
    assert check_chain(chain).layout == ("CHW" if layout == "NCHW" else "HWC")
    assert [position for position, spec in enumerate(chain) if isinstance(spec, ToCHWImage)] == (
        [4] if layout == "NCHW" else []
    )
    (tmp_path / "inference.yml").write_text(yaml.safe_dump(content))
    file = write_image(tmp_path / "photo.png", 5)
    np.testing.assert_array_equal(rebuild(tmp_path, file), prepare(config, file))
    assert content["PostProcess"] == {"Topk": {"topk": 2}}


# Names of class folders and lists that some reader of YAML takes for something else
ODD_NAMES = [
    "1e5",
    "1E+5",
    "-.5e3",
    "010",
    "0o17",
    "0x1f",
    "0b1",
    "1_000",
    "1:30",
    ".inf",
    ".NaN",
    "1.",
    "+1",
    "on",
    "No",
    "y",
    "true",
    "null",
    "~",
    "~/x",
    "=",
    "<<",
    "2024-01-01",
    "...",
    "---",
    "'",
    '"',
    "a:",
    "b:",
    "-",
    "#a",
    "!!str",
    "&a",
    "*a",
    "%a",
    "@a",
    "`a`",
    "{a}",
    "[a",
]
NAMES = (
    st.sampled_from([*ODD_NAMES, "", " ", " a ", "a: b", "- a", "a #b", "\x85"])
    # The second strategy draws surrogates, too, which stand for bytes of a file name that are not UTF-8. It
    # draws no line breaks, which names of classes can't have: lists of names have one line per class.
    | st.text(st.characters(exclude_categories=(), exclude_characters="\n"), max_size=9)
)


@pytest.fixture(scope="module")
def config(weights: Path) -> Config:
    return validate(config_tree(weights, None), "test")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, min_size=3, max_size=3, unique=True))
def test_exported_class_names_are_read_as_written(tmp_path: Path, config: Config, names: list[str]) -> None:
    assert config.Infer is not None
    text = describe_model(config.Arch, config.Infer, names).as_yaml()
    (tmp_path / "inference.yml").write_text(text, encoding="utf-8")
    assert read_description(tmp_path).names == tuple(names)
    # PaddleClas and other programs read the file with PyYAML.
    assert yaml.safe_load(text)["PostProcess"]["Topk"]["label_list"] == names


def test_exported_class_names_may_be_many(tmp_path: Path, weights: Path) -> None:
    tree = config_tree(weights, None)
    tree["Arch"]["class_num"] = 21_841
    config = validate(tree, "test")
    assert config.Infer is not None
    names = [f"{number}: " + "a long name, " * 4 for number in range(21_841)]
    (tmp_path / "inference.yml").write_text(describe_model(config.Arch, config.Infer, names).as_yaml())
    assert read_description(tmp_path).names == tuple(names)


def test_export_tool_prints_only_its_result(tmp_path: Path, weights: Path) -> None:
    tree = config_tree(weights, None)
    tree["Global"]["save_inference_dir"] = str(tmp_path / "new" / "folder")
    config = write_config(tmp_path / "config.yaml", tree)
    command = [sys.executable, str(TOOL), "-c", str(config)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    folder = tmp_path / "new" / "folder"
    files = sorted(each.name for each in folder.iterdir())
    assert {"inference.pdiparams", "inference.yml", program(folder).name} <= set(files)
    size = sum(each.stat().st_size for each in folder.iterdir()) / 1e6
    first, second, third = done.stdout.splitlines()
    assert first == (
        f"[Export] {weights} -> {folder}: {', '.join(files)}, {size:.1f} MB; "
        "input [-1, 3, 32, 32] float32 NCHW, any batch size"
    )
    assert second.startswith(
        "[Export] checked: the relative difference between the logarithms of the scores of the exported and "
    )
    reason = "the config has no DataLoader.Eval"
    assert third == f"[Export] not compared on evaluation images: there are none ({reason})"
    assert list(folder.parent.iterdir()) == [folder]
    if not paddle.is_compiled_with_cuda():  # a GPU build says on its own that there is no GPU
        assert done.stderr == ""


def test_export_of_a_moved_run_writes_into_the_folder_of_the_run(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = config_tree(weights, None)
    tree["Global"] |= {"output_dir": "runs/pets", "save_inference_dir": "runs/pets/inference"}
    config = write_config(tmp_path / "config.yaml", tree).read_bytes()
    store = Store(tmp_path / "moved")
    manifest = Manifest(serial=1, update=1, epoch=1, step=0, versions={}, files={})
    files = [("model.safetensors", [weights.read_bytes()]), ("config.yaml", [config])]
    store.link("best_model", store.write(files, manifest))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export_cli.export(["--model", "../moved"]) == 0
    assert (tmp_path / "moved" / "inference" / "inference.yml").is_file()
    assert export_cli.export(["--model", "../moved/best_model", "--output", "chosen"]) == 0
    assert [path.name for path in Path().iterdir()] == ["chosen"]


def test_export_does_not_change_a_filled_folder(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inference").mkdir()
    (tmp_path / "inference" / "mine").write_text("mine")
    assert export(tmp_path, config_tree(weights, None)) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'inference'}: exists already and is not overwritten; "
        "delete it, or choose another folder (--output, Global.save_inference_dir)\n"
    )
    assert [each.name for each in (tmp_path / "inference").iterdir()] == ["mine"]


def test_export_that_fails_leaves_an_empty_folder(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inference").mkdir()
    tree = config_tree(weights, None)
    tree["Arch"]["class_num"] = 4
    assert export(tmp_path, tree) == 2
    assert "weights of another model" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "inference"]


def test_export_fills_an_empty_folder(tmp_path: Path, weights: Path) -> None:
    (tmp_path / "inference").mkdir()
    assert export(tmp_path, config_tree(weights, None)) == 0
    assert program(tmp_path / "inference").is_file()


def test_export_that_fails_shows_the_output_of_paddle(
    tmp_path: Path, weights: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        os.write(2, b"said by Paddle\n")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paddle.jit, "save", fail)
    assert export(tmp_path, config_tree(weights, None)) == 2
    error = capfd.readouterr().err
    assert "said by Paddle" in error
    assert f"{tmp_path / 'inference'}: cannot write the inference model: No space left on device" in error
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("kind", ["paddle", "onnx"])
def test_export_on_a_full_disk_is_an_error_and_writes_nothing(
    tmp_path: Path, weights: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel cuts files at a limit, as a full disk does. Paddle does not notice it."""
    tree = config_tree(weights, None)
    tree["Global"]["save_inference_dir"] = str(tmp_path / "inference")
    config = str(write_config(tmp_path / "config.yaml", tree))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, before[1]))
        assert export_cli.export(["-c", config, "--format", kind]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    error = capsys.readouterr().err
    assert f"{tmp_path / 'inference'}: cannot write the inference model: File too large" in error
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]


def test_export_without_section_infer_is_an_error(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = config_tree(weights, None)
    del tree["Infer"]
    assert export(tmp_path, tree) == 2
    assert "no section Infer; add it with the transforms" in capsys.readouterr().err


def test_input_of_the_exported_model_follows_the_transforms_of_prediction(weights: Path) -> None:
    tree = config_tree(weights, None)
    tree["Global"]["image_shape"] = [3, 64, 64]
    config = validate(tree, "test")
    assert config.Infer is not None
    assert describe_model(config.Arch, config.Infer, None).Input.shape == (-1, 3, 32, 32)
    (warning,) = [line for line in config_warnings(config) if "image_shape" in line]
    assert "Infer.transforms produces images of [3, 32, 32]" in warning
    tree["Global"]["image_shape"] = [3, 32, 32]
    assert not any("image_shape" in line for line in config_warnings(validate(tree, "test")))


def weight_norm_net(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:
    """A user's architecture, whose hooks compute weights from other parameters."""
    assert data_format == "NCHW"
    return nn.Sequential(
        weight_norm(nn.Conv2D(input_image_channel, 8, 3, stride=4)),
        nn.ReLU(),
        nn.AdaptiveAvgPool2D(2),
        nn.Flatten(),
        weight_norm(nn.Linear(32, class_num)),
    )


def test_export_has_the_weights_that_hooks_compute(tmp_path: Path) -> None:
    if "WeightNormNet" not in ARCHITECTURES:
        ARCHITECTURES.register("WeightNormNet", weight_norm_net)
    weights = write_weights(tmp_path / "model.safetensors", "WeightNormNet")
    tree = config_tree(weights, None, name="WeightNormNet")
    paddle.seed(8)  # other weights than those of the file
    assert export(tmp_path, tree) == 0
    config = validate(tree, "test")
    images = np.stack([prepare(config, write_image(tmp_path / f"{i}.png", i)) for i in range(2)])
    scores = predict(tmp_path / "inference", images)
    np.testing.assert_allclose(scores, dynamic_scores(config, images), rtol=0, atol=TOLERANCE)


def test_export_merges_branches_into_one_convolution(tmp_path: Path) -> None:
    tree = config_tree(write_weights(tmp_path / "model.safetensors", "RepVGG_A0"), None, "NHWC", "RepVGG_A0")
    assert export(tmp_path, tree) == 0
    tree["Arch"]["data_format"] = "NCHW"
    config = validate(tree, "test")
    images = np.stack([prepare(config, write_image(tmp_path / f"{i}.png", i)) for i in range(2)])
    scores = predict(tmp_path / "inference", images)
    np.testing.assert_allclose(scores, dynamic_scores(config, images), rtol=0, atol=TOLERANCE)
    written = (tmp_path / "inference" / "inference.pdiparams").stat().st_size
    model = build_network(config.Arch)
    assert written < 4 * count_parameters(model)
    reparameterize(model)
    assert written == pytest.approx(4 * sum(each.size for each in model.state_dict().values()), rel=1e-3)

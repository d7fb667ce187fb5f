from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from small_classifier import config_tree, write_config

from ppcls.data.index.class_names import write_class_names
from ppcls.deploy.models.source import find_source, find_weights, source_of_config
from ppcls.errors import UserError
from ppcls.recipe.load import validate
from ppcls.weights.manifest import Manifest
from ppcls.weights.store import Store, checkpoint_roots


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, Any]:
    made = config_tree(tmp_path / "run" / "model.safetensors", None)
    made["Global"] |= {"output_dir": str(tmp_path / "run"), "pretrained_model": None}
    return made


@pytest.fixture
def run(tmp_path: Path, tree: dict[str, Any]) -> Path:
    """A run's folder with a checkpoint, with empty weights."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").touch()
    write_config(checkpoint / "config.yaml", tree)
    (tmp_path / "run" / "best_model").symlink_to(checkpoint)
    return tmp_path / "run"


def names(path: Path, *overrides: str) -> tuple[str, ...] | None:
    return find_source(path, overrides).description.names


def test_find_source_run_means_its_best_model(run: Path) -> None:
    source = find_source(run)
    assert source == find_source(run / "best_model")
    assert source.file == run / "best_model"
    assert source.needs_paddle
    assert not source.by_dali
    assert find_source(run, ["Global.use_dali=True"]).by_dali


@pytest.mark.parametrize("use_dali", [False, True])
def test_trained_model_expects_pixels_on_a_gpu(run: Path, use_dali: bool) -> None:
    """Also if DALI loaded the training images: a server loads images by threads."""
    source = find_source(run, [f"Global.use_dali={use_dali}"])
    assert source.description_on("cpu") is source.description
    found = source.description_on("gpu")
    assert (found.Input.dtype, found.Input.shape) == ("uint8", (-1, 32, 32, 3))
    assert found.PreProcess.in_graph == "normalize"


@pytest.mark.parametrize(
    "override",
    [
        pytest.param(
            "Infer.transforms=[{DecodeImage: {to_rgb: False}}, {Pad: {padding: 2}}, "
            "{ResizeImage: {size: 32}}, {NormalizeImage: null}]",
            id="a transform of BGR",
        ),
        pytest.param("Infer.transforms.0.DecodeImage.dtype=uint16", id="16-bit images"),
    ],
)
def test_other_trained_models_expect_prepared_images_on_a_gpu(run: Path, override: str) -> None:
    source = find_source(run, [override])
    assert source.description_on("gpu") is source.description


def test_find_source_run_means_the_newest_best_model_of_both_folders(
    run: Path, tmp_path: Path, tree: dict[str, Any]
) -> None:
    tree["Global"]["checkpoint_fallback_dir"] = str(tmp_path / "elsewhere")
    write_config(run / "config.yaml", tree)
    own, other = checkpoint_roots(run, str(tmp_path / "elsewhere"))
    shutil.rmtree(run / "checkpoints")
    (run / "best_model").unlink()
    config = validate(tree, "config")
    with pytest.raises(UserError, match=f"{run}/best_model does not exist"):
        find_weights(config.Global)
    files = [("model.safetensors", [b""]), ("config.yaml", [(run / "config.yaml").read_bytes()])]
    for serial, root in enumerate([other, own, other]):
        manifest = Manifest(serial=serial, update=serial, epoch=1, step=0, versions={}, files={})
        store = Store(root)
        store.link("best_model", store.write(files, manifest))
        assert find_weights(config.Global) == find_source(run, trust=True).file == root / "best_model"


def test_find_source_prefers_names_of_the_checkpoint_to_those_of_the_run(run: Path, tmp_path: Path) -> None:
    checkpoint = run / "best_model"
    assert names(checkpoint) is None
    write_class_names(run / "label_list.txt", ["of", "the", "run"])
    assert names(checkpoint) == ("of", "the", "run")
    write_class_names(checkpoint / "label_list.txt", ["of", "a", "checkpoint"])
    assert names(checkpoint) == ("of", "a", "checkpoint")
    write_class_names(tmp_path / "given.txt", ["that", "are", "given"])
    given = f"Infer.PostProcess.class_id_map_file={tmp_path / 'given.txt'}"
    assert names(checkpoint, given) == ("that", "are", "given")
    shutil.copytree(checkpoint, tmp_path / "elsewhere")
    assert names(tmp_path / "elsewhere") == ("of", "a", "checkpoint")


def test_find_source_with_missing_names_file_uses_names_of_the_checkpoint(
    run: Path, tree: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tree["Infer"]["PostProcess"]["class_id_map_file"] = "/gone/names.txt"
    write_config(run / "best_model" / "config.yaml", tree)
    assert find_source(run, trust=True).description.names is None
    assert "warning: /gone/names.txt: no such file" in capsys.readouterr().err
    assert names(run) is None
    assert "warning: '/gone/names.txt': the class names in this file are not read" in capsys.readouterr().err
    write_class_names(run / "best_model" / "label_list.txt", ["of", "a", "checkpoint"])
    assert names(run) == ("of", "a", "checkpoint")
    tree["Infer"]["PostProcess"]["class_id_map_file"] = "ppcls/utils/imagenet1k_label_list.txt"
    assert source_of_config(validate(tree, "test")).description.names == ("of", "a", "checkpoint")
    assert "has ImageNet's classes, but the model has 3 classes" in capsys.readouterr().err


def test_find_source_of_config_uses_names_of_its_run(run: Path, tree: dict[str, Any], tmp_path: Path) -> None:
    write_class_names(run / "label_list.txt", ["of", "the", "run"])
    config = write_config(tmp_path / "mine.yaml", tree)
    assert names(config) == ("of", "the", "run")
    assert find_source(config).file == run / "best_model"
    (run / "best_model").unlink()
    with pytest.raises(UserError, match=r"no weights: .* does not exist; set Global\.pretrained_model"):
        find_source(config)


@pytest.mark.parametrize("name", ["a\0b", "a\udcffb"])
def test_find_source_with_impossible_file_name_is_an_error(
    tree: dict[str, Any], run: Path, name: str
) -> None:
    tree["Infer"]["PostProcess"]["class_id_map_file"] = name
    with pytest.raises(
        UserError, match=r"Infer\.PostProcess\.class_id_map_file: contains a NUL or surrogate"
    ):
        source_of_config(validate(tree, "test"))


def test_find_source_of_config_without_infer_is_an_error(run: Path, tree: dict[str, Any]) -> None:
    del tree["Infer"]
    write_config(run / "best_model" / "config.yaml", tree)
    with pytest.raises(UserError, match="no section Infer; add it with the transforms"):
        find_source(run)

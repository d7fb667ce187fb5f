"""A checkpoint whose config or class names have changed is not used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from small_classifier import CLASSES, arch_tree, config_tree

from ppcls.arch.build import build_model
from ppcls.deploy.models.source import find_source
from ppcls.deploy.models.trained import load_network
from ppcls.errors import UserError
from ppcls.recipe.load import validate
from ppcls.weights.files import copy_to_host, pack_arrays
from ppcls.weights.manifest import Manifest, write_file, write_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tree = config_tree(tmp_path / "model.safetensors", None)
    names = "".join(f"{i} {name}\n" for i, name in enumerate(CLASSES))
    model = build_model(**arch_tree(), class_num=len(CLASSES))
    contents = {
        "model.safetensors": b"".join(pack_arrays(copy_to_host(model.state_dict()))),
        "config.yaml": yaml.safe_dump(tree).encode(),
        "label_list.txt": names.encode(),
    }
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    files = {name: write_file(folder / name, data) for name, data in contents.items()}
    write_manifest(folder, Manifest(serial=0, update=0, epoch=0, step=0, versions={}, files=files))
    return folder


def test_find_source_of_intact_checkpoint_has_its_names(folder: Path) -> None:
    assert find_source(folder).description.names == CLASSES


def test_find_source_with_reordered_label_list_is_rejected(folder: Path) -> None:
    path = folder / "label_list.txt"
    path.write_text("".join(f"{i} {name}\n" for i, name in enumerate(CLASSES[::-1])), encoding="utf-8")
    with pytest.raises(UserError, match=r"label_list\.txt: damaged"):
        find_source(folder)


@pytest.mark.parametrize("name", ["config.yaml", "label_list.txt"])
def test_find_source_with_changed_file_is_rejected(folder: Path, name: str) -> None:
    (folder / name).write_text((folder / name).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"{name}: damaged"):
        find_source(folder)


def test_find_source_with_missing_label_list_is_rejected(folder: Path) -> None:
    (folder / "label_list.txt").unlink()
    with pytest.raises(UserError, match=r"label_list\.txt: missing"):
        find_source(folder)


def test_load_network_warns_about_non_finite_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = validate(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")), "config")
    load_network(config.Arch, config.Loss.Train, folder)
    assert "warning" not in capsys.readouterr().err
    weights = build_model(**arch_tree(), class_num=len(CLASSES)).state_dict()
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point())
    weights[name] = paddle.full(weights[name].shape, np.nan)
    (folder.parent / "nan.safetensors").write_bytes(b"".join(pack_arrays(copy_to_host(weights))))
    load_network(config.Arch, config.Loss.Train, folder.parent / "nan.safetensors")
    assert f"NaN or infinite weights in {name};" in capsys.readouterr().err

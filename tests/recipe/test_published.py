"""Recipes for paths in PaddleClas's tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from ppcls.recipe.load import load_config
from ppcls.recipe.published import published_names
from ppcls.recipe.schema import Config

FOLDER = "ppcls/configs/ImageNet"


def load(name: str) -> Config:
    return load_config(f"{FOLDER}/{name}.yaml")


@pytest.mark.parametrize("name", published_names())
def test_every_recipe_is_valid_and_names_its_file_in_a_note(name: str) -> None:
    config = load(name.removesuffix(".yaml"))
    (note,) = config.notes
    assert note.startswith(f"config {FOLDER}/{name}: configs/ResNet50")
    assert f"Arch.name={config.Arch.name}" in note
    assert Path(config.Global.output_dir).name == Path(name).stem


@pytest.mark.parametrize(
    ("name", "epochs", "schedule", "decay", "epsilon", "mixes"),
    [
        ("ResNet/ResNet18", 120, "Piecewise", 1e-4, None, False),
        ("ResNet/ResNet152", 120, "Piecewise", 1e-4, None, False),
        ("ResNet/ResNet50_vd", 200, "Cosine", 7e-5, 0.1, True),
        ("ResNet/ResNet200_vd", 200, "Cosine", 1e-4, 0.1, True),
        ("ResNeXt/ResNeXt152_64x4d", 120, "Piecewise", 1.8e-4, None, False),
        ("SENet/SE_ResNet50_vd", 200, "Cosine", 7e-5, 0.1, True),
    ],
)
def test_recipe_has_the_published_hyper_parameters(
    name: str, epochs: int, schedule: str, decay: float, epsilon: float | None, mixes: bool
) -> None:
    config = load(name)
    values = config.model_dump()
    assert config.Global.epochs == epochs
    assert (config.Optimizer.kind, config.Optimizer.lr.kind) == ("Momentum", schedule)
    assert values["Optimizer"]["regularizer"]["coeff"] == decay
    assert values["Loss"]["Train"][0]["CELoss"]["epsilon"] == epsilon
    assert config.DataLoader.Train is not None
    assert bool(config.DataLoader.Train.dataset.batch_transform_ops) == mixes
    assert values["DataLoader"]["Train"]["sampler"]["batch_size"] == 64


def test_values_shared_by_recipes_are_not_changed_by_a_run() -> None:
    changed = load_config(
        f"{FOLDER}/ResNet/ResNet18_vd.yaml",
        {"Optimizer.lr.learning_rate": 0.5, "Loss.Train.0.CELoss.epsilon": 0},
    )
    assert changed.Optimizer.lr.peak == 0.5
    assert load("ResNet/ResNet34_vd").Optimizer.lr.peak == 0.1


@pytest.mark.parametrize(
    ("path", "level"),
    [
        ("ppcls/configs/ImageNet/ResNet/ResNet50.yaml", None),
        pytest.param("./ppcls/configs/ImageNet/ResNet/ResNet50.yaml", None, marks=pytest.mark.slow),
        ("./ppcls/configs/ImageNet/ResNet/ResNet50_fp16_dygraph.yaml", "O1"),
        pytest.param(
            "ppcls/configs/ImageNet/ResNet/ResNet50_amp_O2_ultra.yaml", "O2", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize(
    "program",
    [["ppcls/train.py"], pytest.param(["-m", "ppcls.train"], marks=pytest.mark.slow)],
    ids=["script", "module"],
)
def test_commands_of_paddleclas_run_in_a_clone(path: str, level: str | None, program: list[str]) -> None:
    command = [sys.executable, *program, "-c", path, "-o", "Global.use_dali=True", "--print-config"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "  name: ResNet50\n" in done.stdout
    assert "  use_dali: true\n" in done.stdout
    assert (f"  level: {level}\n" in done.stdout) == (level is not None)
    assert "configs/ResNet50" in done.stderr


def test_file_of_a_clone_of_paddleclas_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / FOLDER / "ResNet" / "ResNet50.yaml"
    file.parent.mkdir(parents=True)
    text = (ROOT / "configs" / "ResNet50.yaml").read_text().replace("epochs: 120", "epochs: 7")
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    config = load("ResNet/ResNet50")
    assert (config.Global.epochs, config.notes) == (7, ())

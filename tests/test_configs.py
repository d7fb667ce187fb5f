"""Every config that we ship: it loads, and all that it names can be built, but for the data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from paddle import nn
from paths import ROOT

from ppcls.data.section import Split
from ppcls.data.supported import check_numpy
from ppcls.data.transforms.specs import plan_chain
from ppcls.engine.core.networks import build_network
from ppcls.loss.build import build_criterion
from ppcls.metric.build import build_metrics
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import factors, freeze
from ppcls.recipe.load import dump_config, load_config, validate
from ppcls.recipe.schema import Config

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
MODELS: dict[str, nn.Layer] = {}
RECIPES = {
    "ResNet50_90epochs": (90, "76.93 %"),
    "ResNet50_50epochs": (50, "75.96 %"),
    "ResNet50_modern": (100, "78.1 %"),
    "ResNet50_fast": (16, "73.8 %"),
}


def load(path: Path, tmp_path: Path) -> Config:
    """Loads a config, with two class folders where it looks for its classes."""
    if path.stem != "finetune":
        return load_config(path)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    return load_config(path, [f"DataLoader.Train.dataset.image_root={tmp_path}"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_loads_and_builds(path: Path, tmp_path: Path) -> None:
    config = load(path, tmp_path)
    key = config.Arch.model_dump_json()  # several configs train the same model, of which one is enough
    if key not in MODELS:
        MODELS[key] = build_network(config.Arch)
    model = MODELS[key]
    freeze(config.Optimizer, model)
    optimizer = build_optimizer(config.Optimizer, model, factors=factors(config.Optimizer, model))
    rate = config.Optimizer.lr.build(config.Global.epochs, 100)
    assert 0 < rate(100 * config.Global.epochs // 2) <= config.Optimizer.lr.peak == optimizer.get_lr()
    build_criterion(config.Loss.Train)
    build_criterion(config.Loss.Eval)
    build_metrics(config.Metric.Eval)
    for split in (config.DataLoader.Train, config.DataLoader.Eval):
        assert isinstance(split, Split)
        layout = "CHW" if config.Arch.data_format == "NCHW" else "HWC"
        check_numpy(plan_chain(split.dataset.transform_ops, layout), path.stem)
    assert validate(yaml.safe_load(dump_config(config)), path) == config


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_names_its_source_and_published_result(name: str) -> None:
    path = next(path for path in CONFIGS if path.stem == name)
    epochs, figure = RECIPES[name]
    assert load_config(path).Global.epochs == epochs
    head = path.read_text(encoding="utf-8").partition("Global:")[0]
    assert re.search(f"[Pp]ublish.* {figure} top-1", head)
    assert "We have not run it yet." in head

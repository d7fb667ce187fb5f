"""Configs of runs over photographs of three sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from paths import ROOT

from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config

Make = Callable[..., Config]


@pytest.fixture
def overrides(photos: dict[str, Path], tmp_path: Path) -> list[str]:
    """Overrides that make both splits of a config read 6 photographs, in batches of 4."""
    names = [path for key, path in photos.items() if key.startswith(("jpeg420", "png"))]
    listing = tmp_path / "list.txt"
    listing.write_text("".join(f"{path.name} {number % 3}\n" for number, path in enumerate(names)))
    split = [f"dataset.image_root={names[0].parent}", f"dataset.cls_label_path={listing}"]
    split += ["sampler.batch_size=4", "loader.num_workers=0", "loader.dali.num_threads=1"]
    return [
        *(f"DataLoader.{name}.{each}" for name in ("Train", "Eval") for each in split),
        f"Global.output_dir={tmp_path}/run",
        "Global.device=cpu",
    ]


@pytest.fixture
def make(overrides: list[str]) -> Make:
    """Loads a shipped config by name, with more overrides."""
    return lambda name, *more: load_config(ROOT / "configs" / f"{name}.yaml", [*overrides, *more])

"""A copy of a config with other values."""

from __future__ import annotations

from difflib import ndiff
from pathlib import Path

import pytest
from paths import ROOT

from ppcls.bench.loader.write_config import check_new_file, write_config
from ppcls.config.base.overrides import Override
from ppcls.config.base.yaml import read_yaml
from ppcls.errors import UserError

CONFIGS = ROOT / "configs"
VALUES = {
    "Global.use_dali": False,
    "DataLoader.Train.loader.num_workers": 7,
    "DataLoader.Train.loader.dali.num_threads": 3,
}


@pytest.mark.parametrize("source", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_write_config_changes_only_the_values(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "best.yaml"
    write_config(source, target, VALUES)
    expected = read_yaml(source)
    for name, value in VALUES.items():
        Override.parse(f"{name}={value}").apply(expected)
    assert read_yaml(target) == expected


def test_write_config_keeps_comments(tmp_path: Path) -> None:
    source, target = CONFIGS / "ResNet50_photos.yaml", tmp_path / "best.yaml"
    write_config(source, target, VALUES)
    before, after = source.read_text().splitlines(), target.read_text().splitlines()
    assert after[0] == before[0]
    assert after[0].startswith("# ")
    changed = [line for line in ndiff(before, after) if line[0] in "+-"]
    assert changed == [
        "-   use_dali: True",
        "+   use_dali: False",
        "-       num_workers: 4",
        "+       num_workers: 7",
        "+       dali:",
        "+         num_threads: 3",
    ]


def test_write_config_rejects_text_that_would_be_read_otherwise(tmp_path: Path) -> None:
    source, target = tmp_path / "mine.yaml", tmp_path / "best.yaml"
    source.write_text(
        "Global: {output_dir: 2001-12-14t21:59:43.10-05:00}\n"
    )  # text in our configs, a time in YAML 1.2
    with pytest.raises(UserError, match=r"use .* with -o Global\.use_dali=True"):
        write_config(source, target, {"Global.use_dali": True})
    assert not target.exists()


def test_write_config_overwrites_nothing(tmp_path: Path) -> None:
    target = tmp_path / "best.yaml"
    target.write_text("mine")
    with pytest.raises(UserError, match="already exists and is not overwritten"):
        write_config(CONFIGS / "quickstart.yaml", target, {})
    assert target.read_text() == "mine"
    with pytest.raises(UserError, match="no such folder"):
        check_new_file(tmp_path / "gone" / "best.yaml")

"""The example of pairs, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from PIL import Image

SCRIPT = ROOT / "examples" / "paired_images.py"


@pytest.mark.parametrize(
    "options",
    [pytest.param(["--dali"], id="dali"), pytest.param([], id="paddle.io", marks=pytest.mark.slow)],
)
def test_example_network_sharpens_images(options: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, "--steps", "24"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.fullmatch(r"PSNR of chelsea: (.+) dB blurred, (.+) dB after\n", done.stdout)
    assert found is not None, done.stdout
    before, after = map(float, found.groups())
    assert after > before + 0.05
    assert list(tmp_path.iterdir()) == []


def test_example_trains_on_own_folder_trees(tmp_path: Path) -> None:
    for tree in ("img", "gt"):
        for name in ("a/1", "a/2", "b/1"):
            file = tmp_path / "train" / tree / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((64, 64), 50).convert("RGB").save(file)
    command = [sys.executable, str(SCRIPT), "--steps", "1", "--img", "train/img/*/*", "--gt", "train/gt/*/*"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "PSNR of chelsea" in done.stdout

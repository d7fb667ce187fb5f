"""Examples that are programs run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("use_dali", [True, False])
def test_a_python_source(tmp_path: Path, use_dali: bool) -> None:
    overrides = [
        f"Global.output_dir={tmp_path}",
        f"Global.use_dali={use_dali}",
        "Global.epochs=1",
        "DataLoader.Train.dataset.source=evaluation shapes",  # a quarter of the images
    ]
    example = ROOT / "examples" / "python_source.py"
    done = subprocess.run(
        [sys.executable, example, "-o", *overrides], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "done: 1 epochs, 8 updates" in done.stdout
    assert (tmp_path / "best_model").exists()

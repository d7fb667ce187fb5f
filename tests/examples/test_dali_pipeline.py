"""The example of training loops of one's own, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from few_digits import write_few_digits
from paths import ROOT


def test_example_trains_in_both_loops(tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    write_few_digits(tmp_path / "dataset" / "digits", train=40, evaluation=8)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "dali_pipeline.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.sub(r"[\d.]+$", "X", done.stdout, flags=re.MULTILINE) == (
        "config, epoch 1: 2 batches, mean loss X\n"
        "config, epoch 2: 2 batches, mean loss X\n"
        "own pipeline, epoch 1: 48 images, mean loss X\n"
        "own pipeline, epoch 2: 48 images, mean loss X\n"
    )

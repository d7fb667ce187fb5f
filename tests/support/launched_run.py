"""Runs scripts in one or several processes, and checks that they succeed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from paths import ROOT, SUPPORT

LINEAR = SUPPORT / "linear_run.py"
CAPTURED = SUPPORT / "captured_run.py"
TRAIN = ROOT / "tools" / "train.py"


def run(script: Path, *arguments: str, ranks: int = 1, logs: Path) -> None:
    """Runs a script; its launcher's logs go to ``logs``."""
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks), "--log_dir", str(logs)]
    command = [sys.executable, *(launcher if ranks > 1 else []), str(script), *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=logs.parent, env=environment, check=False
    )
    rank1 = (logs / "workerlog.1").read_text() if ranks > 1 else ""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + rank1[-3000:]


def train_on_gpu(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs tools/train.py on a GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLAGS_")}
    return subprocess.run(
        [sys.executable, "tools/train.py", "-c", file, "-o", "Global.device=gpu", *options],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )

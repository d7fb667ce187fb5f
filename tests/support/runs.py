"""Starts training runs in separate processes, and reads the notes that they write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from paths import SUPPORT

from ppcls.weights.files import read_arrays

HERE = SUPPORT
GUARD = 900  # seconds; ends a test whose processes are stuck for good


def begin(script: str, config: Path, notes: Path, *overrides: str, ranks: int = 1) -> subprocess.Popen[str]:
    """Begins a run.

    Args:
        script: A file here, that is run instead of ``tools/train.py``.
        config: YAML file.
        notes: Folder for the launcher's logs and for what the script notes; made.
        overrides: ``Global.epochs=3`` and the like, or ``NAME=value`` of the script's environment.
        ranks: Number of processes.
    """
    notes.mkdir(parents=True, exist_ok=True)
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    launcher += ["--log_dir", str(notes / "log")]
    command = [sys.executable, *(launcher if ranks > 1 else []), str(HERE / script), "-c", str(config)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
    engine = str(HERE.parent / "engine")
    environment |= {
        "NOTES": str(notes),
        "PYTHONPATH": os.pathsep.join([engine, str(HERE.parents[1]), environment.get("PYTHONPATH", "")]),
    }
    settings = [each for each in overrides if "." not in each.partition("=")[0]]
    environment |= dict(each.split("=", 1) for each in settings)
    changes = [each for each in overrides if each not in settings]
    with (notes / "said").open("a") as said:
        return subprocess.Popen(
            [*command, *(["-o", *changes] if changes else [])],
            env=environment,
            cwd=notes,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
        )


def end(process: subprocess.Popen[str]) -> int:
    """Waits for a run's end, and returns its exit code."""
    try:
        return process.wait(GUARD)
    finally:
        process.kill()


def lines(notes: Path, kind: str, rank: int = 0) -> list[str]:
    """Returns what a rank noted, without a line that its end has cut."""
    path = notes / f"{kind}.{rank}"
    if not path.exists():
        return []
    *whole, _cut = path.read_text().split("\n")
    return whole


def said(notes: Path) -> str:
    """Returns the end of what all ranks wrote."""
    logs = sorted((notes / "log").glob("workerlog.*"))
    return "\n".join(path.read_text()[-3000:] for path in [notes / "said", *logs])


def assert_same_files(one: Path, other: Path) -> None:
    """Holds the arrays of two checkpoints to be the same bits."""
    files = sorted(path.name for path in one.glob("*.safetensors"))
    assert files == sorted(path.name for path in other.glob("*.safetensors")) != []
    for file in files:
        expected, found = read_arrays(one / file), read_arrays(other / file)
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{file} {key}")

"""Global.deterministic: two runs, each a process of its own, end with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

TRAIN = ROOT / "tools" / "train.py"


def train(config: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, str(TRAIN), "-c", str(config)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def hold_that_runs_are_equal(make_yaml: Callable[..., Path], folder: Path, **changes: Any) -> None:
    names = ("one", "two")
    for name in names:
        train(make_yaml(name, Global__deterministic=True, EMA__decay=0.5, **changes))
    for file in ("model.safetensors", "optimizer.safetensors", "ema.safetensors"):
        one, two = ((folder / name / "latest" / file).read_bytes() for name in names)
        assert one == two, file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use_dali", "workers"),
    [pytest.param(True, 0, id="dali"), pytest.param(False, 2, id="paddle.io")],
)
def test_runs_with_several_threads_are_equal(
    make_yaml: Callable[..., Path], tmp_path: Path, use_dali: bool, workers: int
) -> None:
    hold_that_runs_are_equal(
        make_yaml,
        tmp_path,
        Global__use_dali=use_dali,
        Global__cpu_threads=3,
        Global__epochs=1,
        DataLoader__Train__loader={"num_workers": workers, "dali": {"num_threads": 3}},
    )


@pytest.mark.gpu
@pytest.mark.parametrize("use_dali", [True, False], ids=["dali", "paddle.io"])
@pytest.mark.parametrize(
    "amp", [{"use_amp": False}, {"level": "O1"}, {"level": "O2"}, {"level": "O1", "dtype": "bfloat16"}]
)
def test_runs_on_a_gpu_are_equal(
    make_yaml: Callable[..., Path], tmp_path: Path, use_dali: bool, amp: dict[str, Any]
) -> None:
    hold_that_runs_are_equal(
        make_yaml, tmp_path, Global__device="gpu", Global__use_dali=use_dali, Global__epochs=4, AMP=amp
    )

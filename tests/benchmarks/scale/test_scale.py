"""The benchmark of costs that grow with the data, and its simulation of 100 million images."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.rows import ROWS
from benchmarks.scale.shard_order import ShardOrder, check_order

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("count", "ranks"), [(1_000_000, 64), (123_457, 8)])
def test_ranks_read_each_image_once(count: int, ranks: int) -> None:
    check_order(count, ranks, batch=16)


def test_an_order_of_100_million_images_needs_two_windows_in_memory() -> None:
    sizes = np.full(10_000, 10_000)
    tracemalloc.start()
    order = ShardOrder(sizes)
    for step in (0, 3000, 6000):
        assert len(order.batch(step, 63, 64, 256)) == 256
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 8 * 640_000  # a list of all images has 800 MB


def test_an_order_depends_on_seed_and_epoch() -> None:
    sizes = np.full(200, 50)
    first = ShardOrder(sizes).window(0)
    assert (first == ShardOrder(sizes).window(0)).all()
    assert len(ShardOrder(sizes).slice(9_990, 20_000)) == 10
    assert (first != ShardOrder(sizes, seed=1).window(0)).any()
    assert (first != ShardOrder(sizes, epoch=1).window(0)).any()


QUICK = ["list", "order", "shard-order"]  # each row needs two processes


@pytest.mark.parametrize(
    ("rows", "share", "processes"),
    [
        pytest.param(QUICK, 0.0005, 2, id="quick"),
        pytest.param([row for row in ROWS if row not in QUICK], 0.02, 1, id="others", marks=pytest.mark.slow),
    ],
)
def test_each_row_is_measured(rows: list[str], share: float, processes: int, tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/run.py", "scale", "--share", str(share), "--rows", ",".join(rows)]
    command += ["--folder", str(tmp_path / "data"), "--processes", str(processes)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()[2:]
    assert len(lines) == len(rows)
    assert all(re.fullmatch(r"\| [\d,]+ [^|]+( \| [\d.,]+){4} \|", line) for line in lines), lines


def test_an_unknown_row_is_an_error() -> None:
    command = [sys.executable, "benchmarks/run.py", "scale", "--rows", "list,lists"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert "--rows: unknown lists; expected some of list, folders" in result.stderr

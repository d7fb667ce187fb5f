"""Stuck processes are killed and reported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import SUPPORT

from ppcls.runtime.progress import ProgressSnapshot
from ppcls.runtime.watchdog import SLOW_FACTOR, StallClock

TEST_TIMEOUT = 600  # seconds; ends a test whose processes hang


def start_process(
    folder: Path, action: str, rank: int = 0, world_size: int = 1, timeout: float | None = 3
) -> Any:
    arguments = json.dumps([str(folder), rank, world_size, timeout, action])
    with (folder / f"workerlog.{rank}").open("w") as out:
        return subprocess.Popen(
            [sys.executable, str(SUPPORT / "watched.py"), arguments],
            stdout=out,
            stderr=out,
            env=os.environ | {"PYTHONPATH": str(SUPPORT.parents[1])},
        )


def wait_for(*processes: Any) -> list[int]:
    try:
        return [process.wait(TEST_TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()


def output(folder: Path, rank: int = 0) -> str:
    return (folder / f"workerlog.{rank}").read_text()


def test_stuck_process_is_killed_and_its_stack_reported(tmp_path: Path) -> None:
    stacks = {
        "sleep": "watched.py",
        "hang with the interpreter lock": "watched.py",
        "stop": "does not respond to signals",
    }
    folders = {action: tmp_path / action for action in stacks}
    for folder in folders.values():
        folder.mkdir()
    processes = [start_process(folder, action) for action, folder in folders.items()]
    assert wait_for(*processes) == [-signal.SIGALRM, -signal.SIGALRM, -signal.SIGKILL]
    for action, stack in stacks.items():
        for text in (output(folders[action]), (folders[action] / "train.log").read_text()):
            assert "the run is stuck and is stopped (Global.hang_timeout: 3 s)" in text
            position = (
                r"rank 0 \(process \d+ on .*\): no progress for 2 s; epoch 1, batch 2, update 1: backward"
            )
            assert re.search(position, text)
            assert stack in text


def test_stuck_process_stops_the_others_and_rank_0_reports_all(tmp_path: Path) -> None:
    """The other process makes progress, as one that evaluates its share does.

    Of the timeout, 2/3 of a quarter remain to write the reports: with 3 s, this was too short on busy cores.
    """
    processes = [
        start_process(tmp_path, "work", 0, 2, timeout=9),
        start_process(tmp_path, "hang with the interpreter lock", 1, 2, timeout=9),
    ]
    assert wait_for(*processes) == [-signal.SIGALRM] * 2
    position = r"\(.*\): no progress for (\d+) s; epoch 1, batch 2, update 1"
    for text in (output(tmp_path), (tmp_path / "train.log").read_text()):
        working = re.search(f"rank 0 {position}: evaluation", text)
        stuck = re.search(f"rank 1 {position}: backward", text)
        assert working is not None
        assert stuck is not None
        assert int(working[1]) < int(stuck[1]) == 7
        assert text.count("most recent call first") == 2
    assert "rank 1" in output(tmp_path, 1)


def test_killed_process_is_named_on_the_terminal(tmp_path: Path) -> None:
    other = start_process(tmp_path, "work", 0, 2, timeout=None)
    assert wait_for(start_process(tmp_path, "die", 1, 2, timeout=600)) == [-signal.SIGKILL]
    while "was killed" not in output(tmp_path):
        assert other.poll() is None
    other.kill()
    wait_for(other)
    killed = r"^rank 1 \(.*\) was killed or crashed .*: backward\. If the memory"
    assert re.search(killed, output(tmp_path), re.MULTILINE)


def test_heartbeat_file_is_touched_while_there_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "heartbeat"
    monkeypatch.setenv("PPCLS_HEARTBEAT_FILE", str(file))
    process = start_process(tmp_path, "work", timeout=600)
    while not file.exists():
        assert process.poll() is None
    first = file.stat().st_mtime_ns
    while file.stat().st_mtime_ns == first:
        assert process.poll() is None
    process.kill()
    wait_for(process)


@pytest.mark.parametrize("timeout", [600, None])
def test_ended_process_leaves_no_files_and_no_watchdog(tmp_path: Path, timeout: float | None) -> None:
    process = start_process(tmp_path, "end", timeout=timeout)
    assert wait_for(process) == [0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["workerlog.0"]
    assert output(tmp_path) == ""
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"watchdog import main" in each and str(tmp_path).encode() in each for each in running)


UPDATES = st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=30)


@given(UPDATES, st.floats(0.1, 3))
def test_stall_clock_counts_only_time_in_which_it_ran(
    updates: list[tuple[float, bool]], longest: float
) -> None:
    def progress(count: int) -> ProgressSnapshot:
        return ProgressSnapshot(count, 1, 1, 1, False, "forward")

    now, count, expected = 100.0, 1, 0.0
    clock = StallClock(longest, now, progress(count))
    for elapsed, reported in updates:
        now, count = now + elapsed, count + reported
        expected = 0.0 if reported else expected + min(elapsed, longest)
        clock.update(now, progress(count))
        assert clock.seconds == pytest.approx(expected)


@pytest.mark.parametrize(("slow", "limit"), [(False, 10), (True, 10 * SLOW_FACTOR)])
def test_stall_clock_expires_before_the_reserve(slow: bool, limit: float) -> None:
    progress = ProgressSnapshot(1, 0, 0, 0, slow, "starting")
    clock = StallClock(1000, 0.0, progress)
    clock.update(limit - 2.6, progress)
    assert not clock.expired(10, 2.5)
    clock.update(limit - 2.4, progress)
    assert clock.expired(10, 2.5)


def launch_two_ranks(config: Path, trouble: str, *more: str, tool: str = "train") -> tuple[int, str]:
    """Runs two ranks of a tool with the launcher; returns its exit code and its output."""
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
    done = subprocess.run(
        [*command, config.parent / "log", SUPPORT / "troubled_run.py", tool, trouble, "-c", config, *more],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": f"{SUPPORT.parents[1]}:{SUPPORT}"},
        timeout=TEST_TIMEOUT,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture
def config(make_yaml: Callable[..., Path]) -> Path:
    chain = [{"DecodeImage": None}, {"ResizeImage": {"size": 16}}, {"NormalizeImage": {}}]
    changes: dict[str, Any] = {}
    for split in ("Train", "Eval"):
        dataset = {"name": "PythonDataset", "source": split.lower(), "transform_ops": chain}
        changes[f"DataLoader__{split}__dataset"] = dataset
        changes[f"DataLoader__{split}__sampler__batch_size"] = 4
    return make_yaml(Arch__name="Linear", Global__use_dali=False, Global__hang_timeout=30, **changes)


EXCHANGE = "waiting for all processes between two batches"


@pytest.mark.parametrize(
    ("trouble", "function", "one", "other"),
    [
        # Rank 0 waits for rank 1 in the first exchange after the update, which may be that of the next batch.
        pytest.param(
            "update:hang with the interpreter lock",
            "on_update",
            f"(batch 1, update 4: {EXCHANGE}|batch 2, update 5: backward and all-reduce)",
            "batch 1, update 4: optimizer",
            marks=pytest.mark.slow,
        ),
        (
            "eval:sleep",
            "__getitem__",
            f"batch \\d, update 8: (evaluation: waiting for all processes|{EXCHANGE})",
            "batch \\d, update 8: evaluation: waiting for batch \\d",
        ),
    ],
)
def test_training_with_a_stuck_rank_stops(
    config: Path, trouble: str, function: str, one: str, other: str
) -> None:
    code, terminal = launch_two_ranks(config, trouble)
    assert code != 0
    log = (config.parent / "run" / "train.log").read_text()
    for text in (terminal, log):
        assert "the run is stuck and is stopped (Global.hang_timeout: 30 s)" in text
        assert re.search(rf"rank 0 \(.*\): no progress for \d+ s; epoch 2, {one}\n", text)
        assert re.search(rf"rank 1 \(.*\): no progress for \d+ s; epoch 2, {other}\n", text)
        assert re.search(rf"troubled_run\.py\", line \d+ in {function}\n", text)
        assert text.count("in train_epoch") >= 2 or "in evaluate" in text


@pytest.mark.slow
def test_evaluation_with_a_stuck_rank_stops(config: Path) -> None:
    weights, run = config.parent / "weights.pdparams", config.parent / "run"
    paddle.save({"1.weight": paddle.zeros([16 * 16 * 3, 4]), "1.bias": paddle.zeros([4])}, str(weights))
    given = ("-o", f"Global.pretrained_model={weights}")
    code, terminal = launch_two_ranks(config, "eval:sleep", *given, tool="evaluate")
    assert code != 0
    assert "the run is stuck and is stopped (Global.hang_timeout: 30 s)" in terminal
    assert re.search(r"rank 1 \(.*\): no progress for 2[23] s; evaluation: waiting for batch \d\n", terminal)
    assert "troubled_run.py" in terminal
    assert [each.name for each in run.iterdir()] == ["failures"], "evaluation writes no log"


@pytest.mark.slow
def test_terminal_shows_the_rank_that_failed_first(config: Path) -> None:
    """Rank 0 fails in C++ because rank 1 ended."""
    code, terminal = launch_two_ranks(config, "train:bad image")
    assert code != 0
    cause = r"^rank 1 \(.*\) failed first:\nerror: Python source 'train' \(sample \d+\): not an image"
    assert re.search(cause, terminal, re.MULTILINE)


@pytest.mark.slow
def test_terminal_names_a_killed_rank(config: Path) -> None:
    code, terminal = launch_two_ranks(config, "update:die")
    assert code != 0
    killed = r"^rank 1 \(.*\) was killed or crashed .*; epoch 2, batch 1, update 4: optimizer\. If the memory"
    assert re.search(killed, terminal, re.MULTILINE)

"""Processes that are stuck, for real: each ends, and says where it was."""

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

from ppcls.engine.core.hooks import Phases, Told
from ppcls.runtime.progress import Progress, Seen
from ppcls.runtime.watchdog import PATIENCE, Stillness

HERE = SUPPORT
GUARD = 600  # seconds; ends a test whose processes are stuck for good


def begin(folder: Path, trouble: str, rank: int = 0, world: int = 1, timeout: float | None = 3) -> Any:
    arguments = json.dumps([str(folder), rank, world, timeout, trouble])
    with (folder / f"workerlog.{rank}").open("w") as out:
        return subprocess.Popen(
            [sys.executable, str(HERE / "watched.py"), arguments],
            stdout=out,
            stderr=out,
            env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        )


def end(*processes: Any) -> list[int]:
    try:
        return [process.wait(GUARD) for process in processes]
    finally:
        for process in processes:
            process.kill()


def words(folder: Path, rank: int = 0) -> str:
    return (folder / f"workerlog.{rank}").read_text()


@pytest.mark.parametrize(
    ("trouble", "stack"),
    [
        ("sleep", "watched.py"),
        ("read with Python's lock", "watched.py"),
        ("stop", "does not even take a signal"),
    ],
)
def test_a_stuck_process_ends_and_says_where_it_was(tmp_path: Path, trouble: str, stack: str) -> None:
    assert end(begin(tmp_path, trouble)) == [-signal.SIGKILL]
    for text in (words(tmp_path), (tmp_path / "train.log").read_text()):
        assert "Global.hang_timeout is 3 s: the run is stuck, and ends here" in text
        assert re.search(
            r"rank 0 \(process \d+ on .*\): no step for 2 s; epoch 1, batch 2, update 1: backward", text
        )
        assert stack in text


def test_a_stuck_process_ends_the_others_and_rank_0_shows_all(tmp_path: Path) -> None:
    """The other one is well, as one that evaluates its share is: it ends with the run, not with itself."""
    processes = [begin(tmp_path, "work", 0, 2), begin(tmp_path, "read with Python's lock", 1, 2)]
    assert end(*processes) == [-signal.SIGKILL, -signal.SIGKILL]
    for text in (words(tmp_path), (tmp_path / "train.log").read_text()):
        assert re.search(r"rank 0 \(.*\): no step for 0 s; epoch 1, batch 2, update 1: evaluation", text)
        assert re.search(r"rank 1 \(.*\): no step for 2 s; epoch 1, batch 2, update 1: backward", text)
        assert text.count("most recent call first") == 2
    assert "rank 1" in words(tmp_path, 1)


def test_a_process_that_is_killed_is_named_on_the_terminal(tmp_path: Path) -> None:
    other = begin(tmp_path, "work", 0, 2, timeout=None)
    assert end(begin(tmp_path, "die", 1, 2, timeout=600)) == [-signal.SIGKILL]
    while "was killed" not in words(tmp_path):
        assert other.poll() is None
    other.kill()
    end(other)
    assert re.search(
        r"^rank 1 \(.*\) was killed or crashed, .*: backward\. If memory", words(tmp_path), re.MULTILINE
    )


@pytest.mark.parametrize("timeout", [600, None])
def test_a_process_that_ends_leaves_nothing(tmp_path: Path, timeout: float | None) -> None:
    process = begin(tmp_path, "end", timeout=timeout)
    assert end(process) == [0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["workerlog.0"]
    assert words(tmp_path) == ""
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"watchdog import main" in each and str(tmp_path).encode() in each for each in running)


LOOKS = st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=30)


@given(LOOKS, st.floats(0.1, 3))
def test_only_time_that_the_watcher_was_awake_counts(looks: list[tuple[float, bool]], most: float) -> None:
    def seen(count: int) -> Seen:
        return Seen(count, 1, 1, 1, False, "forward")

    now, count, expected = 100.0, 1, 0.0
    still = Stillness(most, now, seen(count))
    for passed, told in looks:
        now, count = now + passed, count + told
        expected = 0.0 if told else expected + min(passed, most)
        still.look(now, seen(count))
        assert still.seconds == pytest.approx(expected)


@pytest.mark.parametrize(("patient", "limit"), [(False, 10), (True, 10 * PATIENCE)])
def test_the_time_is_over_a_reserve_before_its_end(patient: bool, limit: float) -> None:
    seen = Seen(1, 0, 0, 0, patient, "starting")
    still = Stillness(1000, 0.0, seen)
    still.look(limit - 2.6, seen)
    assert not still.lasts(10, 2.5)
    still.look(limit - 2.4, seen)
    assert still.lasts(10, 2.5)


class Heard(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def tell(self, doing: str, *, patient: bool = False) -> None:
        super().tell(doing, patient=patient)
        if hasattr(self, "told"):
            self.told.append(doing)


@pytest.mark.parametrize(("world", "backward"), [(1, "backward"), (2, "backward and all-reduce")])
def test_phases_are_told(world: int, backward: str) -> None:
    heard = Heard()
    told = Told(Phases(), heard, world)
    for phase in ("data wait", "forward", "backward", "optimizer"):
        with told(phase):  # type: ignore[arg-type]
            pass
    assert heard.told == ["waiting for data", "forward", backward, "optimizer"]
    assert not told.exchange_after


def launch(config: Path, trouble: str, *more: str, tool: str = "train") -> tuple[int, str]:
    """Runs two ranks of a tool with the launcher; returns its exit code, and what it shows."""
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
    done = subprocess.run(
        [*command, config.parent / "log", HERE / "troubled_run.py", tool, trouble, "-c", config, *more],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": f"{HERE.parents[1]}:{HERE}"},
        timeout=GUARD,
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
    return make_yaml(Arch__name="Linear", Global__use_dali=False, Global__hang_timeout=12, **changes)


_EXCHANGE = "waiting for all processes between two batches"


@pytest.mark.parametrize(
    ("trouble", "one", "other"),
    [
        # The next batches are read ahead, so a step may still be made before the wait for the stuck one.
        ("train:read with Python's lock", f"(backward and all-reduce|{_EXCHANGE})", "[a-z -]+"),
        (
            "eval:sleep",
            f"(evaluation: waiting for all processes|{_EXCHANGE})",
            "evaluation: waiting for batch \\d",
        ),
    ],
)
def test_a_run_with_a_stuck_rank_ends(config: Path, trouble: str, one: str, other: str) -> None:
    code, terminal = launch(config, trouble)
    assert code != 0
    log = (config.parent / "run" / "train.log").read_text()
    for text in (terminal, log):
        assert "Global.hang_timeout is 12 s: the run is stuck, and ends here" in text
        assert re.search(rf"rank 0 \(.*\): no step for \d+ s; epoch 2, batch \d, update \d: {one}\n", text)
        assert re.search(rf"rank 1 \(.*\): no step for \d+ s; epoch 2, batch \d, update \d: {other}\n", text)
        assert "troubled_run.py" in text
        assert text.count("in train_epoch") >= 2 or "in evaluate" in text


def test_an_evaluation_of_its_own_with_a_stuck_rank_ends(config: Path) -> None:
    weights, run = config.parent / "weights.pdparams", config.parent / "run"
    paddle.save({"1.weight": paddle.zeros([16 * 16 * 3, 4]), "1.bias": paddle.zeros([4])}, str(weights))
    given = ("-o", f"Global.pretrained_model={weights}")
    code, terminal = launch(config, "eval:sleep", *given, tool="evaluate")
    assert code != 0
    assert "Global.hang_timeout is 12 s: the run is stuck, and ends here" in terminal
    assert re.search(r"rank 1 \(.*\): no step for 9 s; evaluation: waiting for batch \d\n", terminal)
    assert "troubled_run.py" in terminal
    assert [each.name for each in run.iterdir()] == ["failures"], "no log but a training's own"


def test_the_terminal_shows_what_failed_first(config: Path) -> None:
    """The first rank fails by the second one's end, in C++, before Python hears of it."""
    code, terminal = launch(config, "train:bad image")
    assert code != 0
    cause = r"^rank 1 \(.*\) failed first:\nerror: Python source 'train' \(sample \d+\): not an image"
    assert re.search(cause, terminal, re.MULTILINE)


def test_the_terminal_names_a_rank_that_was_killed(config: Path) -> None:
    code, terminal = launch(config, "train:die")
    assert code != 0
    assert re.search(
        r"^rank 1 \(.*\) was killed or crashed, .*: [a-z -]+\. If memory", terminal, re.MULTILINE
    )

"""Signals end a run at the same update on every rank, and it resumes from there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import psutil
import pytest
from paths import SUPPORT
from runs import GUARD

from ppcls.weights.files import read_arrays
from ppcls.weights.manifest import verify

SCRIPT = SUPPORT / "signal_run.py"


class Running:
    """A run in processes of its own."""

    def __init__(self, config: Path, notes: Path, ranks: int, *overrides: str) -> None:
        notes.mkdir()
        self.notes = notes
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
        launcher += ["--log_dir", str(notes / "log")]
        command = [sys.executable, *(launcher if ranks > 1 else []), str(SCRIPT), "-c", str(config)]
        if overrides:
            command += ["-o", *overrides]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
        environment["NOTES"] = str(notes)
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=notes,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def lines(self, kind: str, rank: int = 0) -> list[str]:
        path = self.notes / f"{kind}.{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.process.poll() is None, self.end()
            time.sleep(0.01)

    def signal(self, number: int, rank: int) -> None:
        os.kill(int(self.lines("pid", rank)[0]), number)

    def signal_group(self, number: int) -> None:
        """Sends a signal to all processes of the run, as ``timeout``, systemd, Slurm and a terminal do."""
        os.killpg(self.process.pid, number)

    def end(self) -> str:
        said: str = self.process.communicate(timeout=GUARD)[0]
        return said


def same_weights(one: Path, other: Path) -> None:
    expected, found = (read_arrays(each / "latest" / "model.safetensors") for each in (one, other))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


COMMON = {
    "Arch__name": "Linear",
    "Global__epochs": 10,
    "Global__save_interval": 100,
    "Global__eval_interval": 100,
    "DataLoader__Train__sampler__batch_size": 1,
}


@pytest.mark.slow
def test_killed_and_stopped_run_ends_like_undisturbed_run(
    make_yaml: Callable[..., Path], tmp_path: Path
) -> None:
    straight = Running(make_yaml("straight", **COMMON), tmp_path / "0", 1)
    said = straight.end()
    assert straight.process.returncode == 0, said
    config = make_yaml("broken", **COMMON, Global__save_steps=2, Global__checkpoints="auto")
    chance = random.Random(3)
    for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        run = Running(config, tmp_path / f"{number}{chance.random()}", 1)
        saves = chance.randint(2, 9)
        run.until(lambda run=run, saves=saves: len(run.lines("saved")) >= saves)  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 0.05))
        run.signal(number, 0)
        said = run.end()
        assert run.process.returncode == (143 if number == signal.SIGTERM else -number), said
        for folder in (tmp_path / "broken" / "checkpoints").glob("step_*"):
            verify(folder)
    assert "stopped by SIGTERM; resume with --resume (Global.checkpoints=auto)" in said
    updates = [int(line.split()[0]) for line in run.lines("saved")]
    assert len(set(updates)) == len(updates), "one checkpoint for the signal"
    assert verify(tmp_path / "broken" / "latest").update == updates[-1]
    last = Running(config, tmp_path / "9", 1)
    said = last.end()
    assert last.process.returncode == 0, said
    same_weights(tmp_path / "straight", tmp_path / "broken")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("use_dali", "helpers"), [(False, 3), pytest.param(True, 2, marks=pytest.mark.slow)])
def test_signal_to_all_processes_saves_and_stops_the_run(
    make_yaml: Callable[..., Path], tmp_path: Path, number: int, code: int, use_dali: bool, helpers: int
) -> None:
    """All helpers ignore the signal: watchdog, workers of paddle.io, and the filter of messages with DALI."""
    changes = {
        "Global__epochs": 100_000,
        "Global__hang_timeout": 100,
        "DataLoader__Train__loader__num_workers": 2,
    }
    run = Running(make_yaml("run", **COMMON | changes, Global__use_dali=use_dali), tmp_path / "notes", 1)
    run.until(lambda: len(run.lines("saved")) > 1)
    workers = psutil.Process(run.process.pid).children(recursive=True)
    assert len(workers) == helpers
    run.signal_group(number)
    said = run.end()
    assert run.process.returncode == code, said
    assert verify(tmp_path / "run" / "latest").update == int(run.lines("saved")[-1].split()[0])
    _, alive = psutil.wait_procs(workers, timeout=GUARD)
    assert not alive


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_signal_to_one_rank_stops_all_at_the_same_update(
    make_yaml: Callable[..., Path], tmp_path: Path, device: str
) -> None:
    """On GPUs, gradients go by NCCL, and what ranks heard by gloo."""
    if device == "gpu" and paddle.device.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    changes = {**COMMON, "Global__epochs": 100_000, "Global__device": device, "Global__use_dali": False}
    run = Running(make_yaml("run", **changes), tmp_path / "notes", 2)
    run.until(lambda: run.lines("saved", 1))
    run.signal(signal.SIGUSR1, 0)  # saves and continues
    run.until(lambda: any(int(line.split()[0]) % 13 for line in run.lines("saved")))
    count = len(run.lines("saved"))
    run.until(lambda: len(run.lines("saved")) > count)
    run.signal(signal.SIGINT, 1)
    said = run.end()
    assert [run.lines("code", rank) for rank in (0, 1)] == [["130"], ["130"]], said
    assert run.lines("saved", 0) == run.lines("saved", 1)
    updates = [int(line.split()[0]) for line in run.lines("saved")]
    assert sorted(set(updates)) == updates
    assert sum(update % 13 > 0 for update in updates) in (1, 2), "SIGUSR1's, and perhaps SIGINT's"
    assert verify(tmp_path / "run" / "latest").update == updates[-1]


@pytest.mark.slow
def test_launcher_sigterm_stops_all_ranks(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    """It signals each rank three times, one rank after the other, and kills what is left after 30 s."""
    run = Running(make_yaml("run", **{**COMMON, "Global__epochs": 100_000}), tmp_path / "notes", 2)
    run.until(lambda: len(run.lines("saved")) > 1)
    run.process.send_signal(signal.SIGTERM)
    said = run.end()
    assert [run.lines("code", rank) for rank in (0, 1)] == [["143"], ["143"]], said
    assert run.lines("saved", 0) == run.lines("saved", 1)
    last = int(run.lines("saved")[-1].split()[0])
    assert verify(tmp_path / "run" / "latest").update == last

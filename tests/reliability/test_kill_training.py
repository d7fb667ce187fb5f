"""``kill -9`` at any instant of a real run: no checkpoint is unreadable, and the run ends with the same bits.

Two in five instants lie in a save, at one of its calls to the file system, or soon after; two among the first
steps and saves, and one anywhere from the program's first line on.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from figures import Figure
from runs import GUARD, assert_same_files, begin, end, lines, said

from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord, StepRecord
from ppcls.weights.files import read_arrays
from ppcls.weights.manifest import verify
from ppcls.weights.store import Store

VARIANTS: dict[str, dict[str, Any]] = {
    "dali": {"Arch__name": "Linear", "Global__use_dali": True},
    "paddle.io": {
        "Arch__name": "Linear",
        "Global__use_dali": False,
        "DataLoader__Train__loader__num_workers": 1,
    },
    "dali, AdamW, average, 2 batches an update": {
        "Arch__name": "Linear",
        "Global__use_dali": True,
        "Global__update_freq": 2,
        "Global__keep_best": 3,
        "EMA__decay": 0.9,
        "Optimizer": {"name": "AdamW", "lr": {"name": "Cosine", "learning_rate": 1e-3}},
    },
    "paddle.io, ResNet18": {
        "Arch__name": "ResNet18",
        "Global__use_dali": False,
        "Global__epochs": 4,
        "Global__save_steps": 5,
    },
}
COMMON = {
    "Global__epochs": 8,
    "Global__save_steps": 2,
    "Global__save_interval": 2,
    "DataLoader__Train__sampler__batch_size": 2,
}


class Life:
    """One run, killed and gone on with until it is done.

    Attributes:
        kills: How often it was killed.
        within: How many of these instants lay in a save.
        readable: How many checkpoints were there after a kill, each read whole.
    """

    def __init__(self, config: Path, output: Path, notes: Path, chance: random.Random) -> None:
        self._config, self._output, self._notes, self._chance = config, output, notes, chance
        self.kills = self.within = self.readable = 0

    def kill_and_go_on(self, most: int) -> None:
        """Kills the run at most so often, and then lets it end."""
        while self.kills < most:
            if not self._kill():
                return  # it was faster
        notes = self._notes / "last"
        assert end(begin("noting_run.py", self._config, notes, "Global.checkpoints=auto")) == 0, said(notes)

    def _kill(self) -> bool:
        notes, chance = self._notes / str(self.kills), self._chance
        where = chance.choice(["anywhere", "training", "training", "save", "save"])
        place = f"{chance.randint(1, 6)}:{chance.randint(1, 45)}"
        settings = [f"KILL={place}"] if where == "save" else []
        run = begin("noting_run.py", self._config, notes, "Global.checkpoints=auto", *settings)
        if where != "save":
            first, delay = (
                ("pid", chance.uniform(0, 4)) if where == "anywhere" else ("saves", chance.random())
            )
            while not lines(notes, first) and run.poll() is None:
                time.sleep(0.005)
            time.sleep(delay)
            run.kill()
        code = end(run)
        if code == 0:
            self._look(notes)
            return False
        assert code == -signal.SIGKILL, said(notes)
        self.kills += 1
        self._look(notes)
        return True

    def _look(self, notes: Path) -> None:
        """Checks that each checkpoint is whole, and that no checkpoint that was reported as saved is lost."""
        if not self._output.exists():
            return
        saves = lines(notes, "saves")
        self.within += bool(saves) and saves[-1].endswith("begin")
        found = [verify(folder) for folder in Store(self._output).folders()]
        for folder in Store(self._output).folders():
            for file in folder.glob("*.safetensors"):
                read_arrays(file)
        self.readable += len(found)
        saved = [int(line.split()[0]) for line in saves if line.endswith("done")]
        if saved:
            assert max(each.update for each in found) >= saved[-1]
        for link in self._output.iterdir():
            if link.is_symlink():
                verify(link)
        read_records(self._output / "metrics.jsonl")


def recorded(output: Path) -> list[tuple[Any, ...]]:
    """Returns which steps a run's records tell, and all that its evaluations found."""
    return [
        (each.epoch, each.update, *(() if isinstance(each, StepRecord) else (each.loss, each.metrics)))
        for each in read_records(output / "metrics.jsonl")
        if isinstance(each, (StepRecord, EvalRecord))
    ]


@pytest.mark.timeout(4 * GUARD)  # a variant starts 30 processes, of which each ends or is ended after GUARD
@pytest.mark.parametrize(
    ("variant", "kills"),
    [
        pytest.param("dali", 5, marks=pytest.mark.slow),
        *(pytest.param(name, 25, marks=pytest.mark.reliability) for name in VARIANTS),
    ],
)
def test_run_killed_at_random_times_ends_with_the_same_bits(
    make_yaml: Callable[..., Path], tmp_path: Path, figure: Figure, variant: str, kills: int
) -> None:
    changes = {**COMMON, **VARIANTS[variant]}
    straight, output = tmp_path / "straight", tmp_path / "killed"
    notes = tmp_path / "notes"
    begun = begin("noting_run.py", make_yaml("straight", **changes), notes)
    assert end(begun) == 0, said(notes)
    config, chance = make_yaml("killed", **changes), random.Random(f"{variant} {kills}")
    done = within = readable = lives = 0
    while done < kills:
        life = Life(config, output, notes / str(lives), chance)
        life.kill_and_go_on(min(kills - done, 9))
        done, within, lives = done + life.kills, within + life.within, lives + 1
        readable += life.readable
        assert_same_files(straight / "latest", output / "latest")
        assert_same_files(straight / "best_model", output / "best_model")
        links = {path.name for path in straight.iterdir() if path.is_symlink()}
        assert links == {path.name for path in output.iterdir() if path.is_symlink()}
        assert recorded(output) == recorded(straight)
        assert not [path.name for path in (output / "checkpoints").iterdir() if path.name.startswith(".")]
        shutil.rmtree(output)
    assert within, "no kill hit a save"
    figure(
        f"kill -9, {variant}: {done} kills in {lives} runs, {within} of them in a save; "
        f"{readable} checkpoints read, 0 unreadable; all runs ended with the undisturbed one's bits"
    )


def test_killed_run_leaves_no_process_and_no_shared_memory(
    make_yaml: Callable[..., Path], tmp_path: Path
) -> None:
    """Neither paddle.io's workers, nor their batches in shared memory, nor the watchdog."""
    changes = {**COMMON, **VARIANTS["paddle.io"], "Global__epochs": 10_000, "Global__hang_timeout": 600}
    notes, mark = tmp_path / "notes", f"MARK={tmp_path}"
    run = begin("noting_run.py", make_yaml("run", **changes), notes, mark)
    while len(lines(notes, "saves")) < 9:
        assert run.poll() is None, said(notes)
        time.sleep(0.01)
    alive = marked(mark)
    assert len(alive) >= 3, "a run, a worker, a watchdog"
    run.kill()
    end(run)
    until = time.monotonic() + GUARD
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert not marked(mark)
    assert not [path for pid in alive for path in Path("/dev/shm").glob(f"paddle_{pid}_*")]


def marked(text: str) -> list[int]:
    """Returns the processes that have ``text`` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:  # it has ended, or is somebody else's
                continue
            if text.encode() in environment.split(b"\0"):
                found.append(int(folder.name))
    return found

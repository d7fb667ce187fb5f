"""An output folder that is renamed, removed or replaced while a run writes to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_net import assert_equal, build_net, content

from ppcls.engine.checkpoint.output_folder import OutputFolder
from ppcls.engine.core.hooks import RunHook
from ppcls.engine.core.state import TrainState
from ppcls.engine.health import requests
from ppcls.engine.loop import Run
from ppcls.engine.recording import Recording
from ppcls.engine.train import train
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.report.record import EvalRecord
from ppcls.runtime.start import Runtime


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "ResNet18", build_net)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def rename_parent(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("parent"))


def remove(folder: Path) -> None:
    while folder.exists():  # the run may be writing a checkpoint to it
        shutil.rmtree(folder, ignore_errors=True)


def remove_parent(folder: Path) -> None:
    remove(folder.parent)


def replace(folder: Path) -> None:
    remove(folder)
    folder.mkdir()
    (folder / "latest").symlink_to("another run")


class Change(RunHook):
    """Changes the output folder after an update or after an evaluation."""

    def __init__(self, act: Callable[[Path], None], update: int, after_evaluation: bool) -> None:
        self._act = act
        self._update = update
        self._after_evaluation = after_evaluation

    def on_update(self, run: Run) -> None:
        if run.state.update == self._update and not self._after_evaluation:
            self._act(Path(run.settings.output_dir))

    def on_evaluation(self, run: Run, record: EvalRecord) -> None:
        if record.update == self._update and self._after_evaluation:
            self._act(Path(run.settings.output_dir))


def run(config: Config, runtime: Runtime, *hooks: RunHook) -> TrainState:
    folder = Path(config.Global.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return train(config, runtime, folder, Recording(hooks))


# The run has 2 epochs of 4 updates. If the interval is 0, the folder is checked at each update.
MOMENTS = [(2, False, 0.0), (4, True, 0.0), (8, False, 1000.0), (8, True, 1000.0)]
CHANGES: list[tuple[Callable[[Path], None], str, str]] = [
    (rename, "runs/elsewhere", "renamed to"),
    (rename_parent, "parent/run", "renamed to"),
    (remove, "runs/run_recovered", "removed"),
    (remove_parent, "runs/run_recovered", "removed"),
    (replace, "runs/run_recovered", "removed"),
]
QUICK = [(rename, 8, True), (remove, 2, False)]


@pytest.mark.parametrize(
    ("act", "place", "message", "update", "after_evaluation", "interval"),
    [
        pytest.param(*change, *moment, marks=[] if (change[0], *moment[:2]) in QUICK else pytest.mark.slow)
        for change in CHANGES
        for moment in MOMENTS
    ],
)
def test_run_saves_its_state_and_ends_with_an_error(
    act: Callable[[Path], None],
    place: str,
    message: str,
    update: int,
    after_evaluation: bool,
    interval: float,
    make_config: Callable[..., Config],
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(requests, "_MOVED_INTERVAL", interval)
    settings = {"Global__epochs": 2, "Global__use_dali": False, "Arch__name": "ResNet18"}
    config = make_config("runs/run", **settings)
    with pytest.raises(UserError) as caught:
        run(config, cpu, Change(act, update, after_evaluation))
    folder = tmp_path / place
    assert message in str(caught.value)
    assert f"--output {folder} --resume" in str(caught.value)
    assert "all files are in" not in capsys.readouterr().out
    if act is replace:
        assert [path.name for path in (tmp_path / "runs" / "run").iterdir()] == ["latest"]
    else:
        assert not (tmp_path / "runs" / "run").exists()
    resumed = run(make_config(place, Global__checkpoints="auto", **settings), cpu)
    straight = run(make_config("straight", **settings), cpu)
    assert_equal(content(resumed.model), content(straight.model))


def test_folder_is_found_after_each_change(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (tmp_path / "run_recovered").mkdir()
    folder = OutputFolder(path)
    assert not folder.is_moved()
    assert folder.current() == path
    path.rename(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert folder.current() == tmp_path / "b"
    (tmp_path / "b").rename(path)
    assert not folder.is_moved()
    path.rmdir()
    assert folder.current() == folder.current() == tmp_path / "run_recovered_2"
    folder.close()

"""Profiled runs: the files, the figures, and a training that does not change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched_run import LINEAR, TRAIN, run
from recording import Notes
from small_net import MemoryLoader, assert_equal, build_net, content, make_state

from ppcls.cli import train as cli
from ppcls.engine.core.hooks import ProfileWindow
from ppcls.engine.core.observers import Observers
from ppcls.engine.core.step import train_step
from ppcls.engine.loop import Run
from ppcls.engine.profiling.profile import Profile, build_profile, why_no_trace
from ppcls.engine.recording import Recording
from ppcls.engine.train import train
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.recipe.settings import Global
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays

TRACES = why_no_trace(Runtime()) is None


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)


@pytest.fixture
def make(make_config: Callable[..., Config]) -> Callable[..., Config]:
    def make(output: str = "run", **changes: Any) -> Config:
        return make_config(output, **{"Arch__name": "Small", **changes})

    return make


def output(config: Config) -> Path:
    folder = Path(config.Global.output_dir)
    folder.mkdir(exist_ok=True)
    return folder


def spans(trace: Path) -> dict[str, int]:
    """Counts the phases in a trace: Paddle writes ``phase: forward[1.2 ms]``."""
    names = [event.get("name", "").split("[")[0] for event in json.loads(trace.read_text())["traceEvents"]]
    return {name: names.count(f"phase: {name}") for name in ("data wait", "forward", "backward", "optimizer")}


def test_profile_writes_table_and_trace(make: Callable[..., Config], cpu: Runtime) -> None:
    config, plain = make(), make("plain")
    state = train(config, cpu, output(config), Recording(profiled=ProfileWindow(3, 7)))
    assert_equal(content(state.model), content(train(plain, cpu, output(plain)).model))
    folder = output(config) / "profile" / "3-7"
    table = json.loads((folder / "steps.json").read_text())
    assert table["steps"] == [3, 7]
    assert list(table["rows"]) == ["data wait", "forward", "backward", "optimizer", "host"]
    assert all(0 < row["median_ms"] <= row["max_ms"] for row in table["rows"].values())
    assert sum(row["mean_ms"] for row in table["rows"].values()) == pytest.approx(table["step"]["mean_ms"])
    assert table["ordinary_ms"] > 0
    text = (folder / "steps.txt").read_text()
    log = (output(config) / "train.log").read_text()
    assert all(line in log for line in text.splitlines())
    if TRACES:
        assert spans(folder / "trace_rank0.json") == {
            "data wait": 4 + 1,  # the end of the epoch was waited for too
            "forward": 4,
            "backward": 4,
            "optimizer": 4,
        }
    else:
        assert "no trace: the profiler of Paddle 2.6.2 built for GPUs needs an NVIDIA driver" in text


def test_profile_range_counts_updates_from_the_resumed_one(make: Callable[..., Config], cpu: Runtime) -> None:
    first = make(Global__epochs=1, Global__update_freq=2)
    train(first, cpu, output(first))
    rest = make(Global__epochs=2, Global__update_freq=2, Global__checkpoints="auto")
    train(rest, cpu, output(rest), Recording(profiled=ProfileWindow(0, 2)))
    folder = output(rest) / "profile" / "2-4"
    assert json.loads((folder / "steps.json").read_text())["steps"] == [0, 2]
    assert not TRACES or spans(folder / "trace_rank0.json")["forward"] == 4


def test_profile_rejects_window_beyond_the_run(make: Callable[..., Config], cpu: Runtime) -> None:
    config = make()
    with pytest.raises(
        UserError,
        match=r"^--profile 7:9: 8 updates are left to train \(2 epochs of 4, 0 done\); "
        "expected at most 7:8$",
    ):
        train(config, cpu, output(config), Recording(profiled=ProfileWindow(7, 9)))
    assert [file.name for file in output(config).iterdir()] == [".lock"]


def profile_of(folder: Path, steps: int = 2) -> Profile:
    return Profile(ProfileWindow(0, steps), Runtime(), 8, folder)


def take_steps(profile: Profile, steps: int, messages: list[str]) -> Run:
    state = make_state(loader=MemoryLoader(size=8 * steps))
    state.network.train()
    notes = Notes(messages)
    run = Run(state, Global(), notes, reporter=notes, observers=Observers([profile]))  # type: ignore[arg-type]
    for batch in state.loader:
        run.observers.begin_batch()
        with run.observers("data wait"):
            pass
        train_step(state, batch, run.observers)
        run.observers.end_batch(run, batch.update)
    return run


def test_profile_of_run_that_ends_within_the_window_writes_nothing(tmp_path: Path) -> None:
    messages: list[str] = []
    run = take_steps(profile_of(tmp_path / "broken"), 1, messages)
    run.observers.on_end(run, None)
    assert messages == []
    take_steps(profile_of(tmp_path / "next"), 2, messages)
    assert messages[0] == "profile of updates 0 to 1 of this run, milliseconds per update:"
    assert (tmp_path / "next" / "trace_rank0.json").exists() == TRACES


def test_training_continues_if_profile_cannot_be_written(tmp_path: Path) -> None:
    messages: list[str] = []
    profile = profile_of(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    take_steps(profile, 3, messages)
    assert messages == [
        f"{tmp_path}/gone: can't write the profile: No such file or directory; training continues"
    ]


def test_profile_reports_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("a file")
    with pytest.raises(UserError, match="can't create the folder of the profile: Not a directory"):
        build_profile(ProfileWindow(0, 1), make_state(), 1, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "5:2"], "error: --profile: expected START:STOP"),
        (["--profile", "0:2", "--explain-data"], "not allowed with argument"),
    ],
)
def test_profile_with_invalid_options_is_rejected(
    make_yaml: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    config = make_yaml()
    try:
        code: Any = cli.train(["-c", str(config), *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_profile_of_two_ranks_writes_both(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    common = {"Arch__name": "Linear", "Global__epochs": 3}
    plain = make_yaml("plain", **common)
    profiled = make_yaml("profiled", **common, DataLoader__Train__sampler__batch_size=4)
    run(LINEAR, "-c", str(plain), logs=tmp_path / "log1")
    run(LINEAR, "-c", str(profiled), "--profile", "2:8", ranks=2, logs=tmp_path / "log2")
    weights = [
        read_arrays(tmp_path / name / "latest" / "model.safetensors") for name in ("plain", "profiled")
    ]
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, rtol=0, atol=2e-6, err_msg=name)
    folder = tmp_path / "profiled" / "profile" / "2-8"
    table = json.loads((folder / "steps.json").read_text())
    assert "all-reduce" in table["rows"]
    assert table["all_reduce_alone_ms"] > 0
    assert len(table["own_ms"]) == 2
    assert "slowest rank: " in (folder / "steps.txt").read_text()
    assert (folder / "trace_rank1.json").exists() == TRACES


@pytest.mark.gpu
def test_trace_on_gpu_contains_kernels(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    config = make_yaml(Global__device="gpu")
    run(TRAIN, "-c", str(config), "--profile", "3:7", logs=tmp_path / "log")
    folder = tmp_path / "run" / "profile" / "3-7"
    events = json.loads((folder / "trace_rank0.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "Kernel" for event in events)
    assert (
        "in profiled updates the host waits for the GPU between phases" in (folder / "steps.txt").read_text()
    )

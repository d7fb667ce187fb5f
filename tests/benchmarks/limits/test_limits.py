"""The benchmark that finds what limits a run: times of threads, and the whole command on a CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_config import images, make_config, make_yaml

from benchmarks.limits.command import list_settings
from benchmarks.limits.threads import GROUPS, OTHERS, TRAINING, compare, read_threads
from benchmarks.run import main as benchmark

__all__ = ["images", "make_config", "make_yaml"]


def test_times_of_this_process_are_measured() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    before = read_threads()
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    groups = compare(before, read_threads())
    stop.set()
    other.join()
    assert list(groups) == list(GROUPS)
    assert groups[TRAINING].threads == 1
    assert groups[TRAINING].running >= 0.09
    assert groups[TRAINING].waiting >= 0


def test_threads_are_grouped_by_name_without_scheduler_statistics(tmp_path: Path) -> None:
    for number, name in ((101, "[DALI][TP0]Exec"), (102, "[DALI] Executor"), (103, "a (b) c")):
        (tmp_path / str(number)).mkdir()
        fields = " ".join(["S", *["0"] * 10, "200", "100", *["0"] * 5])
        (tmp_path / str(number) / "stat").write_text(f"{number} ({name}) {fields}\n")
    (tmp_path / "104").mkdir()  # it has just ended
    after = read_threads(tmp_path)
    assert len(after) == 3
    groups = compare({}, after)
    assert groups[TRAINING].threads == 0
    assert all(groups[name].threads == 1 for name in GROUPS if name != TRAINING)
    assert groups[OTHERS].running == pytest.approx(groups["threads of DALI"].running)


def test_settings_of_a_gpu_are_valid() -> None:
    from ppcls.data.loaders.section import Dali

    assert [name for name, _ in list_settings(on_gpu=False)] == ["the config"]
    settings = [Dali.model_validate(changes) for _, changes in list_settings(on_gpu=True)]
    assert len(settings) == 8


def test_command_prints_a_row_per_setting(
    make_yaml: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_yaml("run")
    assert benchmark(["limits", "-c", str(config), "--seconds", "0.05", "--warm-up", "1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| one batch on the device", "| the config"]
    assert len({line.count("|") for line in lines}) == 1
    assert benchmark(["limits", "-c", str(config), "-o", "Global.use_dali=False"]) == 2
    assert "Global.use_dali: expected True" in capsys.readouterr().err

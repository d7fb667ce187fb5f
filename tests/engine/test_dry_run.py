"""Dry runs: what they print, and that they leave nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hungry_net import HungryNet
from launched_run import LINEAR, run, train_on_gpu
from small_net import build_net

from ppcls.cli import train as cli
from ppcls.data.bad_images.quarantine import BAD_IMAGES
from ppcls.engine import dry_run as module
from ppcls.engine.dry_run import DryRunFigures
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)
    monkeypatch.setitem(
        ARCHITECTURES._entries, "Hungry", lambda class_num, *_, **__: HungryNet(class_num, True)
    )
    monkeypatch.setattr(module, "_LOADER_SECONDS", 0.05)


@pytest.fixture
def make(make_yaml: Callable[..., Path]) -> Callable[..., Path]:
    def make(output: str = "run", **changes: Any) -> Path:
        return make_yaml(output, **{"Arch__name": "Small", **changes})

    return make


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def figures(said: str) -> dict[str, str]:
    """Returns the lines by their first words."""
    names = ("speed", "data wait", "training only", "loader only", "whole run", "memory", "advice")
    found = {name: line for line in said.splitlines() for name in names if line.startswith(name + " ")}
    assert tuple(found) == names
    return found


def test_slow_updates_are_measured_once(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten updates of a large network on a CPU take minutes."""
    monkeypatch.setattr(module, "_SLOW_SECONDS", 0.0)
    trained = []
    train = module._train_batch

    def count(*arguments: Any, update: bool) -> None:
        trained.append(update)
        train(*arguments, update=update)

    monkeypatch.setattr(module, "_train_batch", count)
    config = make(Global__use_dali=False, DataLoader__Train__sampler__batch_size=80)
    names = "Infer.PostProcess={name: Topk, topk: 1, class_id_map_file: nowhere.txt}"
    prepared = "Infer.transforms=[{DecodeImage: {}}, {ResizeImage: {size: 32}}, {NormalizeImage: {}}]"
    assert cli.train(["-c", str(config), "--dry-run", "-o", names, prepared]) == 0
    said = capsys.readouterr().out
    assert "dry run: 1 update after 1 to warm up, 1 that repeats one batch, " in said
    assert "several epochs" not in said
    assert "warning: nowhere.txt: no such file; predictions will contain class numbers" in said
    assert trained == [True, True, True]
    figures(said)


@pytest.mark.parametrize("use_dali", [True, False], ids=["dali", "paddle.io"])
def test_dry_run_prints_figures_and_writes_nothing(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], use_dali: bool
) -> None:
    config = make(Global__use_dali=use_dali, Global__epochs=30, Global__eval_interval=4)
    before = files(tmp_path)
    assert cli.train(["-c", str(config), "--dry-run"]) == 0
    said = capsys.readouterr().out
    found = figures(said)
    assert "dry run: 3 updates after 2 to warm up, 3 that repeat one batch, " in said
    assert re.search(r" \(h:mm:ss\) for 120 updates and 8 evaluations of \d", found["whole run"])
    assert re.search(r"peak: this process \d+ MiB$", found["memory"])
    assert said.endswith("nothing was written\n")
    assert files(tmp_path) == before
    assert not (tmp_path / "run").exists()


def test_run_starts_after_dry_run_with_estimate_of_the_rest(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, rest = (
        make(Global__epochs=1),
        make("rest", Global__output_dir=str(tmp_path / "run"), Global__epochs=3),
    )
    assert cli.train(["-c", str(first), "--dry-run"]) == 0
    assert cli.train(["-c", str(first)]) == 0
    before = files(tmp_path)
    capsys.readouterr()
    go_on = ["-o", "Global.checkpoints=auto"]
    assert cli.train(["-c", str(rest), "--dry-run", *go_on]) == 0
    said = capsys.readouterr().out
    assert "resumed" in said
    assert " for 8 updates and 2 evaluations " in said
    assert cli.train(["-c", str(first), "--dry-run", *go_on]) == 0
    assert " 0:00:00 (h:mm:ss) for 0 updates and 0 evaluations " in capsys.readouterr().out
    assert cli.train(["-c", str(rest), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert " for 12 updates and 3 evaluations " in said
    assert f"training would fail: {tmp_path}/run already holds a run; resume it with " in said
    assert files(tmp_path) == before
    assert cli.train(["-c", str(rest), *go_on]) == 0


def test_dry_run_with_epochs_of_less_than_three_steps_measures_several_epochs(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = make(DataLoader__Train__sampler__batch_size=20, Global__update_freq=4, EMA__decay=0.9)
    assert cli.train(["-c", str(config), "--dry-run", "-o", "Global.eval_during_train=False"]) == 0
    said = capsys.readouterr().out
    assert "an epoch has only 1 update; several epochs were measured\n" in said
    assert not re.search(r"\d evaluation", said)
    figures(said)


def test_dry_run_of_epoch_shorter_than_an_update(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[DryRunFigures] = []
    monkeypatch.setattr(module, "describe", lambda measured: found.append(measured) or [])
    config = make_config(Arch__name="Small", Global__epochs=3, Global__update_freq=8)
    module.dry_run(config, cpu)
    (measured,) = found
    assert (measured.updates, measured.full_updates) == (3, 1.5)  # 4 batches per epoch


def spoil(images: Path, tmp_path: Path, split: str = "Train") -> dict[str, str]:
    """Returns the change that puts a text among the images of a split."""
    listing = tmp_path / "spoilt.txt"
    listing.write_text("eval.txt 0\n" + (images / f"{split.lower()}.txt").read_text())
    return {f"DataLoader__{split}__dataset__cls_label_path": str(listing)}


def test_dry_run_stops_at_bad_image(
    make: Callable[..., Path], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make(**spoil(images, tmp_path))
    assert cli.train(["-c", str(config), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"^error: .*eval\.txt \(.*, line 1\): not an image", said, re.MULTILINE)
    skip = "DataLoader.Train.dataset.on_error=skip DataLoader.Eval.dataset.on_error=skip"
    assert f"skip them with --on-error skip (-o {skip}); `ppcls dataset check " in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["Train", "Eval"])
def test_dry_run_lists_and_reports_skipped_image(
    make: Callable[..., Path], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], split: str
) -> None:
    config = make(**spoil(images, tmp_path, split), **{f"DataLoader__{split}__dataset__on_error": "skip"})
    assert cli.train(["-c", str(config), "--dry-run"]) == 0
    listing = tmp_path / "run" / BAD_IMAGES
    said = capsys.readouterr().out
    assert said.endswith(f"1 bad image skipped, listed in {listing}; nothing else was written\n")
    assert list((tmp_path / "run").iterdir()) == [listing]
    assert cli.train(["-c", str(config)]) == 0
    for name in ("train.log", "events.jsonl"):
        assert f"so far 1 bad image skipped, listed in {listing}" in (tmp_path / "run" / name).read_text()


def test_dry_run_with_too_little_memory_is_an_error(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.train(["-c", str(make(Arch__name="Hungry")), "--dry-run"]) == 2
    assert "error: out of memory: could not allocate 134217728 MiB more" in capsys.readouterr().err


def test_dry_run_reports_invalid_output_folder(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("a file")
    config = make("other", Global__output_dir=str(tmp_path / "run" / "deep"))
    assert cli.train(["-c", str(config), "--dry-run"]) == 2
    assert f"can't write to this output folder: {tmp_path}/run is not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_dry_run_of_two_ranks_reports_both(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    config = make_yaml(Arch__name="Linear", DataLoader__Train__sampler__batch_size=4, Global__update_freq=2)
    run(LINEAR, "-c", str(config), "--dry-run", ranks=2, logs=tmp_path / "log")
    found = figures((tmp_path / "log" / "workerlog.0").read_text())
    assert " for 4 updates and 2 evaluations " in found["whole run"]
    assert "advice" not in (tmp_path / "log" / "workerlog.1").read_text()
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_dry_run_on_gpu_prints_memory(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    done = train_on_gpu(make_yaml(), "Global.epochs=2", "--dry-run")
    assert done.returncode == 0, done.stderr
    found = figures(done.stdout)
    assert re.search(r"peak: Paddle \d+ MiB of GPU memory \(\d+ MiB in tensors\), ", found["memory"])
    assert "\nGPU memory in use: Paddle " in done.stdout
    assert not (tmp_path / "run").exists()

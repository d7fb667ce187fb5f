"""``tools/benchmark.py loader``: a whole sweep, the quick benchmark, and rejected options."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_images import PHOTOS, write_images

from ppcls.bench.loader import runners
from ppcls.bench.loader.runners import BatchTimer
from ppcls.bench.loader.sweep import LoaderSweep
from ppcls.bench.results.schema import read_results
from ppcls.cli import benchmark
from ppcls.errors import UserError
from ppcls.recipe.load import load_config

Run = Callable[..., str]
SMALL = ("--rounds", "1", "--seconds", "0.01", "--threads", "1", "--workers", "0")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def run(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs the command and returns its output, or its error message."""

    def run_command(*options: str, code: int = 0) -> str:
        assert benchmark.main(["loader", "-c", str(PHOTOS), *options, "-o", *overrides]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return run_command


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns a function that makes the n-th measurement raise KeyboardInterrupt."""
    time, calls = BatchTimer.time, list[int]()

    def interrupt_at(number: int) -> None:
        def interrupted(self: BatchTimer, batches: Iterator[int], skipped: int) -> Any:
            calls.append(skipped)
            if len(calls) == number:
                raise KeyboardInterrupt
            return time(self, batches, skipped)

        monkeypatch.setattr(BatchTimer, "time", interrupted)

    return interrupt_at


def test_sweep_reports_rows_bottleneck_and_setting(run: Run, tmp_path: Path) -> None:
    out, best = tmp_path / "out", tmp_path / "best.yaml"
    output = run(*SMALL, "--out", str(out), "--write-config", str(best))
    results = read_results(out)
    assert results.benchmark == "loader"
    swept = [row for row in results.rows if "backend" in row.labels]
    backends = [row.labels["backend"] for row in swept if "prefetch" not in row.labels]
    assert backends == ["bare DALI", "paddle.io", "DALI CPU", "DALI CPU", "DALI CPU"]
    assert [row.labels["prefetch"] for row in swept if "prefetch" in row.labels] == [1, 2, 4, 8]
    assert [row.labels["decoder"] for row in swept if "decoder" in row.labels] == ["as configured", "whole"]
    assert all(row.metrics["images/s"].low > 0 and row.metrics["data"].low > 0 for row in swept)
    assert swept[0].metrics["of bare DALI"].values == (1.0,)
    stages = [row.labels["up to"] for row in results.rows if "up to" in row.labels]
    assert stages == ["disk", "decode", "transform", "disk, cold"]

    assert "settings x 1 run of 0.01 s" in output
    *_, bottleneck, disk, advice, written, copied = output.splitlines()
    assert bottleneck.startswith("The bottleneck is ")
    assert disk.startswith("The images were in memory. The disk ")
    assert advice.startswith(("Use ", "Keep the present setting ("))
    assert [bottleneck, disk, advice] == list(results.findings[-3:])
    assert written == f"results written to {out}"
    assert copied.startswith(f"wrote {best}: {PHOTOS} with ")
    assert load_config(best).DataLoader.Train is not None


def test_sweep_results_survive_a_later_failure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("failed here")

    monkeypatch.setattr(LoaderSweep, "_best_dali", fail)
    assert "failed here" in run(*SMALL, "--out", str(tmp_path / "out"), code=2)
    rows = read_results(tmp_path / "out").rows
    assert [row.labels["backend"] for row in rows] == ["bare DALI", "paddle.io", "DALI CPU"]


@pytest.mark.parametrize("number", [2, 5])
def test_sweep_interrupted_writes_results(
    run: Run, tmp_path: Path, interrupt: Callable[[int], None], number: int
) -> None:
    interrupt(number)
    out, best = tmp_path / "out", tmp_path / "best.yaml"
    error = run(*SMALL, "--out", str(out), "--write-config", str(best), code=130)
    assert error.splitlines()[-1] == "interrupted"
    results = read_results(out)
    assert results.findings[-1].startswith("Interrupted: the results are incomplete")
    assert sum(bool(row.metrics) for row in results.rows) == number - 1
    assert (out / "results.txt").is_file()
    assert not best.exists()


def test_quick_compares_loaders(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = ("--rounds", "1", "--seconds", "0.01", "--workers", "0")
    output = run("--quick", *short, "--mixup", "--out", str(out))
    names = ["bare DALI pipeline", "ppcls, DALI", "ppcls, DALI + Mixup", "ppcls, paddle.io, 0 workers"]
    assert [row.labels["loader"] for row in read_results(out).rows] == names
    assert output.splitlines()[-3].startswith("ppcls, DALI has ")
    assert output.splitlines()[-2].endswith(" the images/s of ppcls, paddle.io, 0 workers.")
    source, _, tables = (out / "results.txt").read_text(encoding="utf-8").partition("\n\n")
    assert source.startswith("quick loader: ")
    assert "\ncommand: " in source
    assert tables in output


def test_quick_interrupted_keeps_finished_measurements(
    run: Run, tmp_path: Path, interrupt: Callable[[int], None]
) -> None:
    interrupt(5)  # in the second round of three loaders
    out = tmp_path / "out"
    options = ("--rounds", "9", "--seconds", "0.01", "--workers", "0", "--out", str(out))
    assert run("--quick", *options, code=130).splitlines()[-1] == "interrupted"
    assert [len(row.metrics["images/s"].values) for row in read_results(out).rows] == [1, 1, 2]
    assert (out / "results.txt").is_file()


def test_quick_gives_the_reason_without_a_bare_pipeline(
    overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ops = "[DecodeImage, {ResizeImage: {size: 32}}, NormalizeImage]"
    kept = [each for each in overrides if "RandCropImage" not in each]
    short = ("--rounds", "1", "--seconds", "0.01", "--workers", "0")
    arguments = ["--quick", *short, "-o", *kept, f"DataLoader.Train.dataset.transform_ops={ops}"]
    assert benchmark.main(["loader", "-c", str(PHOTOS), *arguments]) == 0
    output = capsys.readouterr().out
    assert "the bare pipeline supports only the transforms" in output
    assert "the images/s of ppcls, paddle.io, 0 workers" in output


@pytest.mark.slow
def test_improvement_has_seconds_per_epoch_and_per_cent(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = ("--rounds", "2", "--seconds", "0.01", "--threads", "1", "2")
    output = run("--improvement", *short, "--out", str(out))
    rows = read_results(out).rows
    works = ["read only", "read and RandCropImage and RandFlipImage"]
    assert [(row.labels["work"], row.labels["workers or threads"], row.labels["loader"]) for row in rows] == [
        (work, count, loader) for work in works for count in (1, 2) for loader in ("paddle.io", "DALI CPU")
    ]
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        assert "improvement" not in theirs.metrics
        seconds = [row.metrics["time"].values for row in (theirs, ours)]
        saved = [100 * (1 - after / before) for before, after in zip(*seconds, strict=True)]
        assert ours.metrics["improvement"].values == pytest.approx(saved)
        ratios = [before / after for before, after in zip(*seconds, strict=True)]
        assert ours.metrics["of paddle.io"].values == pytest.approx(ratios)
        counts = [rate * time for rate, time in zip(ours.metrics["images/s"].values, seconds[1], strict=True)]
        assert counts == pytest.approx([counts[0]] * 2)
    assert "read only: DALI CPU with 2 threads needs " in output
    assert " times (" in output


def test_unsupported_chain_is_a_row_with_a_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object) -> None:
        raise UserError("transform_ops[3]: has no DALI form")

    monkeypatch.setattr(runners, "check_dali", reject)
    output = run(*SMALL)
    rows = [line for line in output.splitlines() if "has no DALI form" in line and "round" not in line]
    assert [row.split()[0] for row in rows] == ["DALI", "present"]
    assert output.splitlines()[-1].startswith("Use paddle.io, 0 workers: ")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--quick", "--threads", "2"), "--threads cannot be used with --quick"),
        (("--mixup",), "--mixup needs --quick"),
        (("--data", ".", "--threads", "2"), "--data cannot be used with --quick, --write-config, --workers"),
        (("--improvement", "--quick"), "--improvement cannot be used with --quick"),
        (("--data", "/missing"), "/missing: no such folder"),
        (("--write-config", str(PHOTOS)), "already exists and is not overwritten"),
        (("--write-config", "/missing/best.yaml"), "no such folder: /missing"),
        (("--out", str(PHOTOS)), "expected a folder, found a file"),
        (("--images", "1"), "expected at least one batch of 2 images, got 1"),
    ],
)
def test_options_that_cannot_work_are_rejected(run: Run, options: tuple[str, ...], error: str) -> None:
    assert error in run(*options, code=2)


@pytest.mark.parametrize("name", ["results.json", "results.txt", "01-images-s-by-threads.png"])
def test_used_folder_is_not_overwritten(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    assert f"expected a new or an empty folder, found {name}" in run("--out", str(tmp_path), code=2)
    assert (tmp_path / name).read_text() == "mine"


def test_folders_on_disks_have_bottlenecks(run: Run, tmp_path: Path, overrides: list[str]) -> None:
    root = next(Path(text.partition("=")[2]) for text in overrides if "image_root=" in text)
    shutil.copytree(root, tmp_path / "copy")
    out = tmp_path / "out"
    options = ("--seconds", "0.05", "--rounds", "2", "--out", str(out))
    output = run("--data", str(root), str(tmp_path / "copy"), *options)
    assert "The bottleneck is that of images that are not in memory" in output
    rows = read_results(out).rows
    assert [row.labels["storage"] for row in rows] == [str(root), str(tmp_path / "copy")]
    for row in rows:
        assert row.note.startswith("bottleneck: ")
        assert {"read, in memory", "prepared by the CPU", "loader, in memory"} <= set(row.metrics)
        if "stayed in memory" not in row.note:  # the temporary folder is on a disk
            assert {"disk", "read, cold", "loader, cold"} <= set(row.metrics)

"""The loaders' benchmark from the command line: a whole sweep in small, in short, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from PIL import Image

from ppcls.bench.loader import page_cache, rounds, sweep, timing
from ppcls.bench.loader.page_cache import Dropped
from ppcls.bench.loader.rounds import Run, Stopwatch, Turn
from ppcls.bench.results.results import read_results
from ppcls.cli import benchmark as benchmark_cli
from ppcls.config.load import load_config
from ppcls.errors import UserError

PHOTOS = ROOT / "configs" / "ResNet50_photos.yaml"
Say = Callable[..., str]
LITTLE = ("--rounds", "1", "--seconds", "0.01", "--threads", "1", "--workers", "0")


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for number in range(36):
        Image.fromarray(rng.integers(0, 255, (40, 48, 3), np.uint8)).save(tmp_path / f"{number}.jpg")
    (tmp_path / "list.txt").write_text("".join(f"{number}.jpg {number % 8}\n" for number in range(36)))
    dataset = "DataLoader.Train.dataset"
    return [
        f"{dataset}.image_root={tmp_path}",
        f"{dataset}.cls_label_path={tmp_path / 'list.txt'}",
        f"{dataset}.transform_ops.1.RandCropImage.size=32",
        "DataLoader.Train.sampler.batch_size=2",
        "Global.device=cpu",
    ]


@pytest.fixture
def says(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> Say:
    """Gives a function that runs the command and returns what it says, of errors the error."""

    def run(*options: str, code: int = 0, more: tuple[str, ...] = ()) -> str:
        assert benchmark_cli.main(["loader", "-c", str(PHOTOS), *options, "-o", *overrides, *more]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def test_a_whole_sweep(says: Say, tmp_path: Path) -> None:
    out, best = tmp_path / "out", tmp_path / "best.yaml"
    chains = ("--chains", "read", "config", "--backends", "read", "bare", "dali-cpu", "--prefetch", "2")
    said = says("--cold", *LITTLE, *chains, "--out", str(out), "--write-config", str(best))
    results = read_results(out)
    assert results.benchmark == "loader"
    swept = [row for row in results.rows if "varied" in row.labels]
    assert {row.labels["chain"] for row in swept} == {"read", "config"}
    assert {row.labels["backend"] for row in swept} == {"read only", "bare DALI", "DALI CPU"}
    assert all(row.metrics["throughput"].low > 0 and row.metrics["data"].low > 0 for row in swept)
    stages = [row.labels["stage"] for row in results.rows if "stage" in row.labels]
    assert stages == ["disk", "decode", "transform", "hand-over", "all together"]
    for row in swept:
        if row.labels["backend"] == "bare DALI":
            assert row.metrics["of bare DALI"].values == (1.0,)

    assert "settings x 1 runs of 0.01 s" in said
    *_, verdict, advice, written, copied = said.splitlines()
    assert verdict.startswith("The bottleneck is ")
    assert advice.startswith(("Use ", "Keep the present setting ("))
    assert [verdict, advice] == list(results.findings[-2:])
    assert written == f"written to {out}; open {out / 'index.html'} in a browser"
    assert copied.startswith(f"{best}: {PHOTOS} with ")
    assert load_config(best).DataLoader.Train is not None
    assert len(list(out.glob("*.png"))) >= 6


def test_a_file_system_that_forgets_nothing_is_named(says: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "try_dropping", lambda files: Dropped(1.0, 0.5))
    said = says("--cold", *LITTLE, "--chains", "read", "--backends", "read")
    assert "Nothing is measured with a cold cache: 50% of the data set's pages stayed in memory" in said
    assert "The config's chain was not measured, or not to the end" in said


def test_files_are_dropped_before_each_cold_run(says: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []
    monkeypatch.setattr(sweep, "try_dropping", lambda files: Dropped(1.0, 0.0))
    monkeypatch.setattr(sweep, "drop", lambda files: dropped.append(len(files)))
    says("--cold", "--rounds", "3", *LITTLE[2:], "--chains", "read", "--backends", "read")
    assert dropped == [36] * 3
    assert page_cache.drop is not sweep.drop


def test_what_was_swept_is_kept_should_the_rest_fail(
    says: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("interrupted here")

    monkeypatch.setattr(sweep, "_last_groups", fail)
    chosen = ("--chains", "config", "--vary", "workers", "--backends", "dali-cpu")
    assert "interrupted here" in says(*LITTLE, *chosen, "--out", str(tmp_path / "out"), code=1)
    (row,) = read_results(tmp_path / "out").rows
    assert row.labels["backend"] == "DALI CPU"


def test_an_interrupted_sweep_writes_and_says_so(
    says: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = rounds._run, []

    def interrupted(turn: Turn[Any], watch: Stopwatch) -> Run:
        calls.append(turn)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(turn, watch)

    monkeypatch.setattr(rounds, "_run", interrupted)
    chosen = ("--chains", "config", "--vary", "workers", "--backends", "dali-cpu")
    out, best = tmp_path / "out", tmp_path / "best.yaml"
    said = says(*LITTLE, *chosen, "--out", str(out), "--write-config", str(best), code=130)
    assert said.splitlines()[-1] == "interrupted"
    assert read_results(out).findings[-1].startswith("Interrupted: no setting is known as best")
    assert (out / "index.html").is_file()
    assert not best.exists()


def test_in_short(says: Say, tmp_path: Path) -> None:
    said = says("--quick", "--rounds", "1", "--workers", "0", "--mixup", "--out", str(tmp_path / "out"))
    _, *lines = said.splitlines()
    names = ["bare DALI pipeline", "ppcls, DALI", "ppcls, DALI + Mixup", "ppcls, paddle.io, 0 workers"]
    assert [line.split("  ")[0].strip() for line in lines[:4]] == names
    assert lines[4].startswith("ppcls, DALI is ")
    assert lines[5].endswith(" times ppcls, paddle.io, 0 workers")
    rows = read_results(tmp_path / "out").rows
    assert [row.labels["contender"] for row in rows] == names
    assert [each.name for each in (tmp_path / "out").glob("*.png")] == ["01-each-loader.png"]
    assert '"title": "Each loader"' in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_an_interrupt_in_short_keeps_the_rounds_that_are_whole(
    says: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, calls = timing.rate, []

    def rate(*asked: Any) -> float:
        calls.append(asked)
        if len(calls) == 8:  # of three a round, the first of which is not counted
            raise KeyboardInterrupt
        return measured(*asked)

    monkeypatch.setattr(timing, "rate", rate)
    out = tmp_path / "out"
    said = says("--quick", "--rounds", "9", "--workers", "0", "--out", str(out), code=130)
    assert said.splitlines()[-1] == "interrupted"
    assert {len(row.metrics["throughput"].values) for row in read_results(out).rows} == {1}
    assert (out / "index.html").is_file()


def test_a_chain_that_a_backend_can_not_do_is_a_row_with_a_reason(
    says: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("transform_ops[3]: has no DALI form")

    monkeypatch.setattr(sweep, "check_dali", refuse)
    chosen = ("--chains", "config", "--vary", "workers", "--backends", "paddle", "dali-cpu")
    said = says(*LITTLE, *chosen)
    (row,) = [line for line in said.splitlines() if "has no DALI form" in line]
    assert row.split()[:3] == ["DALI", "CPU", "1"]
    assert "paddle.io, 0 workers" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--quick", "--cold"), "--cold does not go with --quick"),
        (("--quick", "--threads", "2"), "--threads does not go with --quick"),
        (("--mixup",), "--mixup goes with --quick"),
        (("--write-config", str(PHOTOS)), "is there already, and is not overwritten"),
        (("--write-config", "/gone/best.yaml"), "there is no folder /gone"),
        (("--out", str(PHOTOS)), "is a file, expected a folder"),
        (("--backends", "dali-gpu"), "nothing is left to measure (dali-gpu needs a GPU); widen --backends,"),
        (("--images", "1"), "1 images are fewer than one batch of 2"),
        (("--cold", "--images", "8"), "8 images are too few to be read from a cold disk in batches of 2"),
    ],
)
def test_what_is_refused(says: Say, options: tuple[str, ...], error: str) -> None:
    assert error in says(*options, code=1)


def test_results_are_not_overwritten(says: Say, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("mine")
    assert "holds a benchmark's results already" in says("--out", str(tmp_path), code=1)
    assert (tmp_path / "results.json").read_text() == "mine"


@pytest.mark.parametrize("option", [("--seconds", "0"), ("--rounds", "none"), ("--workers", "-1")])
def test_numbers_that_are_none(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark_cli.main(["loader", "-c", str(PHOTOS), *option])
    assert f"argument {option[0]}: expected" in capsys.readouterr().err

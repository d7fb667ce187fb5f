"""Files of predictions keep all results, in each format, also after an error."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from ppcls.deploy import prediction_files
from ppcls.deploy.infer import FailedFile, PredictedFile
from ppcls.deploy.prediction_files import open_results
from ppcls.errors import UserError
from ppcls.postprocess.results import Classification

GOOD = PredictedFile(Path("=a,b.jpg"), Classification((1, 0), ("été", "no"), (0.75, 0.25)))
BAD = FailedFile(Path("lone \udcff surrogate.jpg"), "the file is empty")


def read_csv(path: Path) -> list[dict[str, Any]]:
    rows = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
    return [{**row, "path": row["path"].removeprefix("'")} for row in rows]


def read_lines(path: Path) -> list[dict[str, Any]]:
    trees = map(json.loads, path.read_text().splitlines())
    return [
        {"path": tree["path"], "error": tree.get("error"), "class": tree.get("names", [None])[0]}
        for tree in trees
    ]


def read_parquet(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    assert all(isinstance(row["score"], float) for row in rows if row["class"])
    return rows


@pytest.mark.parametrize(
    ("suffix", "read"), [(".csv", read_csv), (".jsonl", read_lines), (".parquet", read_parquet)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_results_are_complete_after_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    read: Callable[[Path], list[dict[str, Any]]],
    count: int,
) -> None:
    monkeypatch.setattr(prediction_files, "_BLOCK", 2)
    path = tmp_path / f"results{suffix}"

    def interrupt() -> None:
        with open_results(path, 2) as write:
            for result in [GOOD] * count + [BAD]:
                write(result)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    rows = read(path)
    assert [row["class"] or None for row in rows] == ["été"] * count + [None]
    assert rows[0]["path"] == "=a,b.jpg"
    assert rows[-1]["error"] == "the file is empty"
    with pytest.raises(UserError, match="exists already"), open_results(path, 2):
        raise AssertionError


@pytest.mark.parametrize("name", ["results.xlsx", "results", "results.csv.gz", "results.json"])
def test_other_suffixes_are_an_error(tmp_path: Path, name: str) -> None:
    problem = r"ends in \.csv, \.jsonl or \.parquet"
    with pytest.raises(UserError, match=problem), open_results(tmp_path / name, 1):
        raise AssertionError
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_an_error_before_the_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "results.parquet"
    with pytest.raises(UserError, match="pip install pyarrow"), open_results(path, 1):
        raise AssertionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_no_file_remains_without_results(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(UserError, match="no model"), open_results(tmp_path / f"r{suffix}", 1):
        raise UserError("no model")
    assert not list(tmp_path.iterdir())


def test_classes_below_a_score_are_left_out() -> None:
    result = GOOD.result
    assert isinstance(result, Classification)
    assert GOOD.with_min_score(0.5).result == Classification((1,), ("été",), (0.75,))
    assert GOOD.with_min_score(0.25).result == result
    assert str(GOOD.with_min_score(0.9)).endswith(": no class")
    assert str(Classification((), (), (), unknown=True)) == "unknown"
    assert BAD.with_min_score(0.9) is BAD

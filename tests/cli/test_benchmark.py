"""Command lines of the benchmarks."""

from __future__ import annotations

import pytest

from ppcls.cli import benchmark


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exited:
        benchmark.main(arguments)
    assert exited.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["loader", "train"])
def test_help_of_each_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        benchmark.main([name, "--help"])
    assert exited.value.code == 0
    assert f" {name} [-h]" in capsys.readouterr().out


def test_missing_command_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([]) == 2
    assert "expected a command first; known: loader, train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-c", "c", "--batch-size", "0"], "expected an integer > 0, got '0'"),
        (["train", "-c", "c", "--seconds", "nan"], "expected a number > 0, got 'nan'"),
        (["train", "-c", "c", "--torch"], "--torch is an option of python benchmarks/run.py pytorch"),
        (["train", "-c", "c", "--processes", "two"], "expected an integer > 0, got 'two'"),
        (["train", "-c", "c", "--precision", "fp16"], "invalid choice: 'fp16'"),
        (["train", "-c", "c", "--phase-steps", "-1"], "expected an integer >= 0, got '-1'"),
        (["loader", "-c", "c", "--seconds", "0"], "argument --seconds: expected"),
        (["loader", "-c", "c", "--rounds", "none"], "argument --rounds: expected"),
        (["loader", "-c", "c", "--workers", "-1"], "argument --workers: expected"),
    ],
)
def test_benchmark_with_invalid_values_is_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(arguments, capsys)


@pytest.mark.parametrize("name", ["containers", "run", "infer", "serve", "compare"])
def test_moved_command_names_its_new_place(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([name, "--out", "x"]) == 2
    assert f"is now `python benchmarks/run.py {name}` in a clone of ppcls" in capsys.readouterr().err

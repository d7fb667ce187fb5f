"""The runner of the benchmarks: its help, and results that it reads and draws."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from example_results import RESULTS
from paths import ROOT

from benchmarks.run import main
from ppcls.bench.results.schema import write_results


def test_help_lists_all_benchmarks() -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--help"]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: run.py COMMAND")
    assert all(f"\n  {name} " in done.stdout for name in main.commands)


@pytest.mark.parametrize("name", main.commands)
def test_examples_of_each_benchmark_parse(name: str) -> None:
    called = main.commands[name]
    for example in called.options.examples:
        words = shlex.split(example)
        assert words[:3] == ["python", "benchmarks/run.py", name]
        called.parse(words[3:])


def test_charts_are_drawn_from_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path, RESULTS)
    assert main(["charts", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"charts written to {tmp_path}\n"
    assert list(tmp_path.glob("*.png"))

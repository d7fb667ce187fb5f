"""One real run of the steps' benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls import benchmark_cli

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def test_compares_a_bare_loop_with_ours(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark_cli.main(["step", "-c", str(QUICKSTART), "--rounds", "1", "-o", *small[:3]]) == 0
    first, how, *speeds = capsys.readouterr().out.splitlines()
    assert first.startswith("Paddle ")
    assert how == "steps: operator by operator; no CUDA graph: the run is on a CPU"
    assert [line.split("  ")[0] for line in speeds] == ["bare Paddle loop", "ours, one batch", "ours, fed"]
    assert all(float(line.split(" img/s")[0].split()[-1]) > 0 for line in speeds)

"""The command line of the benchmarks."""

from __future__ import annotations

import pytest

from ppcls.cli import benchmark as benchmark_cli


@pytest.mark.parametrize("name", ["loader", "containers", "train"])
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark_cli.main([name, "--help"])
    assert ended.value.code == 0
    assert "-c CONFIG" in capsys.readouterr().out


def test_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark_cli.main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err

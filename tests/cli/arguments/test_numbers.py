"""Numbers and overrides on command lines are checked as in a config."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from ppcls.cli import dataset as dataset_cli
from ppcls.cli.arguments.options import within
from ppcls.cli.train import tune

positive_int, non_negative_int, positive_float = within(int, gt=0), within(int, ge=0), within(float, gt=0)


@given(st.integers())
def test_integers_are_accepted_within_their_bound(value: int) -> None:
    for read, least in ((positive_int, 1), (non_negative_int, 0)):
        if least <= value <= sys.float_info.max:
            assert read(str(value)) == value
        else:
            with pytest.raises(argparse.ArgumentTypeError, match="expected an integer >"):
                read(str(value))


@given(st.floats())
def test_numbers_are_accepted_within_bounds(value: float) -> None:
    read = within(float, gt=0, le=3600)
    if 0 < value <= 3600:
        assert read(repr(value)) == value
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="expected a number > 0 and <= 3600, got '"):
            read(repr(value))


@pytest.mark.parametrize("text", ["", "x", "1.5", "²", "1/2", "inf", "nan"])
def test_text_that_is_no_integer_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"expected an integer > 0, got '{text}'"):
        positive_int(text)


def test_infinity_is_rejected_as_a_positive_number() -> None:
    assert positive_float("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number > 0, got 'inf'"):
        positive_float(str(math.inf))


def test_repeated_override_options_are_joined() -> None:
    config = ["-c", "config.yaml"]
    assert tune.parse([*config, "-o", "a=1", "b=2", "-o", "c=3"]).override == ("a=1", "b=2", "c=3")
    assert tune.parse(config).override == ()


@pytest.mark.parametrize("command", ["check", "stats"])
def test_dataset_command_applies_repeated_overrides(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "configs" / "quickstart.yaml"
    wrong = ["-o", "Global.epoch=1", "-o", "Global.sed=1"]
    assert dataset_cli.main([command, "-c", str(config), *wrong]) == 2
    message = capsys.readouterr().err
    assert "Global.epoch: unknown key" in message
    assert "Global.sed: unknown key" in message


@pytest.mark.parametrize("wrong", ["-3", "0", "--seed=-1"])
def test_dataset_command_rejects_invalid_numbers(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        dataset_cli.main(["cells", wrong, "--out", str(tmp_path / "out")])
    assert "expected an integer >" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

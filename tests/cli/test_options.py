"""Numbers on command lines: refused as a config refuses them."""

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
from ppcls.cli.options import add_override, non_negative_int, positive_float, positive_int, within


@given(st.integers())
def test_whole_numbers(value: int) -> None:
    for read, least in ((positive_int, 1), (non_negative_int, 0)):
        if least <= value <= sys.float_info.max:
            assert read(str(value)) == value
        else:
            with pytest.raises(argparse.ArgumentTypeError, match="expected an integer >"):
                read(str(value))


@given(st.floats())
def test_numbers_within_bounds(value: float) -> None:
    read = within(float, gt=0, le=3600)
    if 0 < value <= 3600:
        assert read(repr(value)) == value
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="expected a number > 0 and <= 3600, got '"):
            read(repr(value))


@pytest.mark.parametrize("text", ["", "x", "1.5", "²", "1/2", "inf", "nan"])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"expected an integer > 0, got '{text}'"):
        positive_int(text)


def test_infinity_is_no_duration() -> None:
    assert positive_float("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number > 0, got 'inf'"):
        positive_float(str(math.inf))


def test_overrides_may_come_several_times() -> None:
    made = argparse.ArgumentParser()
    add_override(made, "")
    assert made.parse_args(["-o", "a=1", "b=2", "-o", "c=3"]).override == ["a=1", "b=2", "c=3"]
    assert made.parse_args([]).override == []


@pytest.mark.parametrize("command", ["check", "stats"])
def test_a_second_override_does_not_replace_the_first(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ROOT / "configs" / "quickstart.yaml"
    wrong = ["-o", "Global.epoch=1", "-o", "Global.sed=1"]
    assert dataset_cli.main([command, "-c", str(config), *wrong]) == 1
    said = capsys.readouterr().err
    assert "Global.epoch: unknown key" in said
    assert "Global.sed: unknown key" in said


@pytest.mark.parametrize("wrong", ["-3", "0", "--seed=-1"])
def test_numbers_of_what_is_made(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        dataset_cli.main(["cells", wrong, "--out", str(tmp_path / "out")])
    assert "expected an integer >" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

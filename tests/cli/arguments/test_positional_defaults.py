"""A positional argument that is not used has the default of its class."""

from __future__ import annotations

from ppcls.cli.dataset import cells


def test_optional_positional_argument_has_its_default() -> None:
    assert cells.parse([]).images == 800
    assert cells.parse(["7"]).images == 7

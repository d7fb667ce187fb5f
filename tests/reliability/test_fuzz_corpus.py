"""Inputs of tests/reliability/fuzz/corpus: seeds, and what `make fuzz` found. Readers handle all of them."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

CORPUS = Path(__file__).with_name("fuzz") / "corpus"
pytestmark = pytest.mark.hostile


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_input_is_read_or_rejected(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(CORPUS.parent)])
    from targets import EXPECTED, TARGETS

    with suppress(*EXPECTED):
        TARGETS[path.parent.name](path.read_bytes(), tmp_path)

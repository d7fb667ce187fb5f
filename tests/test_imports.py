"""Imports point one way, and one place decides who reads the data."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT


def test_the_contracts_of_imports_are_kept() -> None:
    pytest.importorskip("importlinter")
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def attributes(file: Path) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}


def test_three_places_read_use_dali() -> None:
    """Who reads the data, in training and in prediction, and what memory is left for it."""
    files = [*(ROOT / "ppcls").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    readers = {file.relative_to(ROOT).as_posix() for file in files if "use_dali" in attributes(file)}
    assert readers == {"ppcls/data/build.py", "ppcls/deploy/models/source.py", "ppcls/runtime/start.py"}


def test_only_runtime_reads_the_environment() -> None:
    files = [file for file in (ROOT / "ppcls").rglob("*.py") if {"environ", "getenv"} & attributes(file)]
    assert {file.parent.relative_to(ROOT).as_posix() for file in files} == {"ppcls/runtime"}


def test_paddles_own_zlib_is_not_pythons() -> None:
    """Paddle 2.6's, imported first, ends the process where Python's is used."""
    use = "import ppcls, paddle, zlib; print(zlib.decompress(zlib.compress(b'whole')))"
    done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, check=False)
    assert done.stdout == "b'whole'\n", done.stderr

"""The Python source of an example, which a shipped config names."""

from __future__ import annotations

import runpy

from paths import ROOT

from ppcls.registry import SOURCES


def register_example_source() -> None:
    """Registers the source of ``examples/python_source.py``, unless another test file has done it."""
    if "training shapes" not in SOURCES:
        runpy.run_path(str(ROOT / "examples/python_source.py"))

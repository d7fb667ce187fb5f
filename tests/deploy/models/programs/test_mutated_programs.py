"""Damaged programs of Paddle: each is loaded or rejected, and none ends the process or writes a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import SUPPORT
from programs import legacy_program, write_legacy_export
from runs import GUARD
from small_classifier import export_model, forget_files, write_image

pytestmark = [pytest.mark.hostile, pytest.mark.slow]

COUNT = 30


@pytest.mark.parametrize("name", ["inference.json", "inference.pdmodel", "inference.pdiparams"])
def test_mutated_program_is_loaded_or_rejected(name: str, tmp_path: Path) -> None:
    exported = export_model(tmp_path, "paddle")
    forget_files(exported)  # the digests would reject all mutations before they are parsed
    if name == "inference.pdmodel":
        exported = write_legacy_export(tmp_path / "legacy", exported, legacy_program())
    elif not (exported / name).exists():
        pytest.skip("Paddle 2.6 does not write programs of Paddle 3")
    image = write_image(tmp_path / "image.png", 0)
    words = [
        sys.executable,
        str(SUPPORT / "mutated_programs.py"),
        str(exported),
        name,
        str(COUNT),
        str(image),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=GUARD, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["finds"] == []
    assert sum(result["codes"].values()) == COUNT
    assert result["codes"].get("1", 0) > COUNT // 3  # the check was reached and rejects programs

"""Limits of the tests themselves."""

from __future__ import annotations

import signal
import subprocess

import pytest


def test_process_of_a_failed_block_is_killed() -> None:
    with pytest.raises(ValueError, match="failed"), subprocess.Popen(["sleep", "600"]) as process:
        raise ValueError("failed")
    assert process.returncode == -signal.SIGKILL

"""Tests of the end of a process that is one of several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from launched_run import launch

# The exit code is 77 if the process executes destructors of C++ libraries, which run after all Python code.
_SCRIPT = """
import atexit, ctypes, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

library = ctypes.CDLL(None)
library.__cxa_atexit(library._exit, ctypes.c_void_p(77), None)
from ppcls.cli.command import Command
from ppcls.errors import UserError
from ppcls.runtime.session import dedicated
from ppcls.runtime.settings import RuntimeSettings


@dataclass(frozen=True)
class Options:
    examples: ClassVar = ()


def run(options):
    sys.stdout = open(1, "w", closefd=False)  # with a buffer
    with dedicated(RuntimeSettings(device="cpu"), Path("run")):
        atexit.register(print, "registered")
    if sys.argv[1:] == ["fails"]:
        raise UserError("made")


sys.exit(Command("made", Options, run)([]))
"""


@pytest.mark.parametrize(("ranks", "words", "code"), [(2, (), 0), (2, ("fails",), 2), (1, (), 77)])
def test_only_a_single_process_executes_destructors(
    tmp_path: Path, ranks: int, words: tuple[str, ...], code: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    logs = tmp_path / "logs"
    done = launch([str(script), *words], ranks, logs)
    assert done.returncode == code, done.stdout
    if code == 0:  # else the end of one rank can end the other before its output
        assert all("registered" in (logs / f"workerlog.{rank}").read_text() for rank in range(ranks))

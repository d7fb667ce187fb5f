"""Checks whether this machine and its installed packages can train: ``python tools/doctor.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("doctor", sys.argv[1:]))

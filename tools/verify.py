"""Checks a bundle on this machine: ``python tools/verify.py BUNDLE``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("verify", sys.argv[1:]))

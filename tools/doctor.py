"""Checks whether this machine and its installed packages can train: ``python tools/doctor.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.doctor import doctor

if __name__ == "__main__":
    sys.exit(doctor())

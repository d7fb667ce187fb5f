"""Runs the command ``ppcls`` as ``python -m ppcls``, or as a script that a launcher starts."""

import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # modules in ppcls/ would hide others

from ppcls.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

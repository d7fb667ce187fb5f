"""Trains a model. ``python ppcls/train.py -c FILE`` is the old name of ``tools/train.py``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # modules in ppcls/ would hide others
    from ppcls.cli.main import run_command

    sys.exit(run_command("train", sys.argv[1:]))

"""Fits the temperature of a model's probabilities: ``python tools/calibrate.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.eval import calibrate

if __name__ == "__main__":
    sys.exit(calibrate())

"""Searches for the best values of config keys: ``python tools/tune.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.train import tune

if __name__ == "__main__":
    sys.exit(tune())

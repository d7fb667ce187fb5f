"""Builds, searches and changes an image index: ``python tools/index.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.index import main

if __name__ == "__main__":
    sys.exit(main())

"""Makes a data set: ``python tools/dataset.py digits`` or ``photos N``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.dataset_cli import main

if __name__ == "__main__":
    sys.exit(main())

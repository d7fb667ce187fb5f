"""Measures speed: ``python tools/benchmark.py loader -c configs/ResNet50_photos.yaml``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.benchmark import main

if __name__ == "__main__":
    sys.exit(main())

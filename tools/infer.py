"""Predicts images: ``python tools/infer.py photo.jpg folder -c configs/ResNet50.yaml``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.infer import infer

if __name__ == "__main__":
    sys.exit(infer())

"""Starts a run in several processes: ``python tools/launch.py --gpus=0,1 train -c configs/ResNet50.yaml``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("launch", sys.argv[1:]))

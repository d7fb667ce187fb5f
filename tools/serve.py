"""Serves a model over HTTP: ``python tools/serve.py --model output/quickstart/best_model``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("serve", sys.argv[1:]))

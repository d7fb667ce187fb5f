"""Lists the runs below a folder with their results: ``python tools/runs.py runs``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("runs", sys.argv[1:]))

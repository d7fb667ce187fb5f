"""Trains a model: ``python ppcls/static/train.py -c FILE``, PaddleClas's script for static graphs.

The graph is compiled as ``Global.to_static`` sets it, like in ``tools/train.py``.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from ppcls.cli.main import run_command

    sys.exit(run_command("train", sys.argv[1:]))

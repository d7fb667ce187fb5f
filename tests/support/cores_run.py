"""Writes the CPU cores of each rank: ``cores_run.py CONFIG FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ppcls.recipe.load import load_config
from ppcls.runtime import start as runtime

if __name__ == "__main__":
    run = runtime.start(load_config(sys.argv[1]).Global)
    (Path(sys.argv[2]) / f"cores_{run.rank}.json").write_text(json.dumps(sorted(run.cpus)))

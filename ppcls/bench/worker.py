"""One measuring process, started by its path: ``python worker.py KIND FOLDER``, by a launcher, too.

Reads ``FOLDER/task.json``, and writes ``FOLDER/rank_N.json``: what was found, or why nothing was.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(kind: str, folder: Path) -> int:
    """Does one task; returns the exit code."""
    from ppcls.errors import UserError
    from ppcls.files import write_text
    from ppcls.runtime.launch import read_launch

    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    try:
        said: dict[str, Any] = {"found": _measure(kind, task)}
    except UserError as error:
        said = {"reason": str(error)}
    write_text(folder / f"rank_{read_launch().rank}.json", json.dumps(said))
    return 0 if "found" in said else 1


def _measure(kind: str, task: dict[str, Any]) -> dict[str, Any]:
    """Measures; Paddle must not be imported before `ppcls.runtime.start.start` has run."""
    from ppcls.config.load import load_config
    from ppcls.runtime import start as runtime

    if kind in ("infer", "device"):
        from ppcls.bench.infer import worker as infer_worker

        return infer_worker.measure(task) if kind == "infer" else infer_worker.look(task)
    config = load_config(task["config"], task["overrides"])
    run = runtime.start(config.Global)
    from ppcls.bench.train import worker as train_worker
    from ppcls.bench.train.task import Task

    if kind == "look":
        return train_worker.look(config, run)
    return train_worker.measure(config, run, Task.read(task))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])  # not this folder, whose names are others' too
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

"""Entry point of the processes that measure: ``python worker.py KIND FOLDER``, also with a launcher.

Each process reads ``FOLDER/task.json`` and writes ``FOLDER/rank_N.json``, which contains the sample or the
reason of a failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(kind: str, folder: Path) -> int:
    """Measures one task, writes the sample, and returns the exit code."""
    from ppcls.errors import UserError
    from ppcls.files import write_text
    from ppcls.runtime.launch import read_launch

    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    try:
        answer: dict[str, Any] = {"found": _measure(kind, task)}
    except UserError as error:
        answer = {"reason": str(error)}
    write_text(folder / f"rank_{read_launch().rank}.json", json.dumps(answer))
    return 0 if "found" in answer else 1


def _measure(kind: str, task: dict[str, Any]) -> dict[str, Any]:
    """Returns the sample of a task. Paddle must not be imported before `ppcls.runtime.start.start` runs."""
    if kind in ("infer", "device"):
        from ppcls.bench.infer import worker as infer_worker

        return infer_worker.measure(task) if kind == "infer" else infer_worker.inspect(task)
    from ppcls.recipe.load import load_config
    from ppcls.runtime import start as runtime

    config = load_config(task["config"], task["overrides"])
    run = runtime.start(config.Global)
    from ppcls.bench.train import worker as train_worker
    from ppcls.bench.train.tasks import TrainTask

    if kind == "inspect":
        return train_worker.inspect(config, run)
    return train_worker.measure(config, run, TrainTask(**task))


if __name__ == "__main__":
    # Remove this folder from the path, because its modules would hide others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

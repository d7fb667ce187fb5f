"""Entry point of the processes that measure training: ``python worker.py KIND FOLDER``, also with a launcher.

The kind is ``inspect`` or ``train``. See `ppcls.engine.autotune.processes.answer_task`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any


def measure(kind: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sample of a task, which consists of the fields of `TrainTask`.

    Raises:
        UserError: The task cannot be measured on this machine.
    """
    from ppcls.recipe.load import load_config
    from ppcls.runtime import start as runtime

    config = load_config(task["config"], task["overrides"])
    run = runtime.start(config.Global)  # imports Paddle, so nothing before may import it
    from ppcls.bench.train import worker
    from ppcls.bench.train.tasks import TrainTask
    from ppcls.engine.autotune.workload import SyntheticLoader, Workload, training_workload
    from ppcls.engine.core.build import build_state
    from ppcls.engine.profiling.peak_memory import explain_out_of_memory

    split = config.DataLoader.need_train()
    if kind == "inspect":
        return worker.inspect(config.Arch, split, run)
    guard = partial(explain_out_of_memory, run, config.used_splits, config.Global, config.AMP)

    def build() -> Workload:
        loader = None
        if task["source"] == "synthetic":
            loader = SyntheticLoader(split, config.Arch, run, accumulate=config.Global.update_freq)
        state = build_state(config, run, lambda *_: None, loader)
        return training_workload(state, config.Global, config.Arch, split)

    return worker.measure_workload(TrainTask(**task), run, guard, build)


def main(kind: str, folder: Path) -> int:
    """Measures the task in a folder, and returns the exit code."""
    from ppcls.engine.autotune.processes import answer_task

    return answer_task(folder, lambda task: measure(kind, task))


if __name__ == "__main__":
    # Replace this folder in the path, because its modules would hide others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

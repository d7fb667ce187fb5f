"""Entry point of the process that measures one way to execute steps: ``python worker.py FOLDER``.

It measures in an own process, because a process can choose most of the settings only once, and because a
crash must not end the run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sample of a task: the path ``config``, and the fields of `TimingPlan`.

    Raises:
        UserError: The steps cannot be executed in this way, for example because the memory is too small.
    """
    from ppcls.recipe.load import load_config
    from ppcls.runtime import start as runtime

    config = load_config(task["config"])
    run = runtime.start(config.Global)  # imports Paddle, so nothing before may import it
    from ppcls.engine.autotune.timing import TimingPlan, time_updates
    from ppcls.engine.autotune.workload import SyntheticLoader, training_workload
    from ppcls.engine.core.build import build_state
    from ppcls.engine.profiling.peak_memory import explain_out_of_memory

    with explain_out_of_memory(run, config.used_splits, config.Global, config.AMP):
        split = config.DataLoader.need_train()
        loader = SyntheticLoader(split, config.Arch, run, accumulate=config.Global.update_freq)
        state = build_state(config, run, lambda *_: None, loader)
        workload = training_workload(state, config.Global, config.Arch, split)
        try:
            return time_updates(TimingPlan(**task["plan"]), workload, run)
        finally:
            workload.release()


def main(folder: Path) -> int:
    """Measures the task in a folder, and returns the exit code."""
    from ppcls.engine.autotune.processes import answer_task

    return answer_task(folder, measure)


if __name__ == "__main__":
    # Replace this folder in the path, because its modules would hide others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    sys.exit(main(Path(sys.argv[1])))

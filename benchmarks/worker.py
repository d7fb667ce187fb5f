"""Entry point of the processes that measure: ``python worker.py KIND FOLDER``, also with a launcher.

See `ppcls.engine.autotune.processes.answer_task`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any


def measure(kind: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sample of a task.

    Args:
        kind: ``infer`` or ``device`` for a model (see `benchmarks.infer.predictions`), ``kernels`` for its
            kernels (see `benchmarks.infer.kernels`), ``random`` to write models (see
            `benchmarks.infer.random_models`), ``train`` for steps.
        task: Facts about what to measure.

    Raises:
        UserError: The task cannot be measured on this machine.
    """
    if kind in ("infer", "device"):
        from benchmarks.infer import predictions

        return predictions.measure(task) if kind == "infer" else predictions.inspect(task)
    if kind == "kernels":
        from benchmarks.infer import kernels

        return kernels.measure(task)
    if kind == "random":
        from benchmarks.infer import random_models

        return random_models.write(task)
    if task["source"] != "bare":
        from ppcls.bench import worker

        return worker.measure(kind, task)
    from ppcls.recipe.load import load_config
    from ppcls.runtime import start as runtime

    config = load_config(task["config"], task["overrides"])
    run = runtime.start(config.Global)  # imports Paddle, so nothing before may import it
    from benchmarks.pytorch.bare_loop import bare_workload
    from ppcls.bench.train.tasks import TrainTask
    from ppcls.bench.train.worker import measure_workload
    from ppcls.engine.profiling.peak_memory import explain_out_of_memory

    guard = partial(explain_out_of_memory, run, config.used_splits, config.Global, config.AMP)
    return measure_workload(TrainTask(**task), run, guard, lambda: bare_workload(config, run))


def main(kind: str, folder: Path) -> int:
    """Measures the task in a folder, and returns the exit code."""
    from ppcls.engine.autotune.processes import answer_task

    return answer_task(folder, lambda task: measure(kind, task))


if __name__ == "__main__":
    # Replace this folder in the path, because its modules would hide others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

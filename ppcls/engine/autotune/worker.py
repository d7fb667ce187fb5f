"""Entry point of the process that measures one way to execute steps: ``python worker.py FOLDER``.

It measures in an own process, because a process can choose most of the settings only once, and because a
crash must not end the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppcls.data.loaders.batch import Loader
    from ppcls.engine.autotune.timing import TimingPlan
    from ppcls.engine.autotune.workload import Workload
    from ppcls.runtime.start import Runtime


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sample of a task: ``config``, `TimingPlan`'s fields and optionally ``noise``.

    Without noise, the sample has ``inference_images_per_second``, too, or the reason of a failure,
    ``inference_error``.

    If the task has ``ways`` to decode, the sample has ``rates``: for each way, the images per second of the
    training with the images of the config, or the reason of a failure.

    Raises:
        UserError: The steps cannot be executed in this way, for example because the memory is too small.
    """
    from ppcls.recipe.load import load_config
    from ppcls.runtime import start as runtime

    config = load_config(task["config"])
    run = runtime.start(config.Global)  # imports Paddle, so nothing before may import it
    from ppcls.data.build import build_loader
    from ppcls.data.loaders.section import Dali
    from ppcls.engine.autotune.timing import TimingPlan, run_updates, time_inference, time_updates
    from ppcls.engine.autotune.workload import SyntheticLoader, training_workload
    from ppcls.engine.core.build import build_state
    from ppcls.engine.profiling.peak_memory import explain_out_of_memory

    split = config.DataLoader.need_train()

    def build(way: Mapping[str, Any]) -> Loader:
        dali = Dali.model_validate({**split.loader.dali.model_dump(), **way})
        settings = split.loader.model_copy(update={"dali": dali})
        changed = split.model_copy(update={"loader": settings})
        classes = config.class_count(training=True)
        return build_loader(changed, "Train", run, config.Global, config.Arch, classes)

    with explain_out_of_memory(run, config.used_splits, config.Global, config.AMP):
        noise = task.get("noise", 0.0)
        loader = SyntheticLoader(split, config.Arch, run, accumulate=config.Global.update_freq, noise=noise)
        state = build_state(config, run, lambda *_: None, loader)
        workload = training_workload(state, config.Global, config.Arch, split)
        plan = TimingPlan(**task["plan"])
        try:
            if "ways" not in task:
                sample = time_updates(plan, workload, run)
                if noise:
                    return sample
                try:
                    rate = time_inference(plan, workload, run, sample["step"] * sample["steps"])
                except (MemoryError, OSError, RuntimeError) as error:  # the training is measured nevertheless
                    return {**sample, "inference_error": shorten(error)}
                return {**sample, "inference_images_per_second": rate}
            run_updates(workload, run, plan.warm_up)
            return {"rates": [_time_way(partial(build, way), run, workload, plan) for way in task["ways"]]}
        finally:
            workload.release()


def _time_way(build: Callable[[], Loader], run: Runtime, workload: Workload, plan: TimingPlan) -> float | str:
    """Returns the images per second of the training with one loader, or the reason of a failure."""
    from ppcls.engine.autotune.timing import time_updates
    from ppcls.errors import UserError

    assert workload.feed is not None
    try:
        loader = build()
        try:
            workload.feed(loader)
            return float(time_updates(plan, workload, run)["images_per_second"])
        finally:
            loader.release()
    except (MemoryError, RuntimeError, UserError) as error:
        return shorten(error)


def shorten(error: BaseException) -> str:
    """Returns the beginning of an error's message in one line."""
    return " ".join(str(error).split())[:300]


def main(folder: Path) -> int:
    """Measures the task in a folder, and returns the exit code."""
    from ppcls.engine.autotune.processes import answer_task

    return answer_task(folder, measure)


if __name__ == "__main__":
    # Replace this folder in the path, because its modules would hide others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    sys.exit(main(Path(sys.argv[1])))

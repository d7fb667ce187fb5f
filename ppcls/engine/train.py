"""One training run, from its preparation to its end: lock, reports, loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from paddle import distributed

from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.data.bad_images.quarantine import BAD_IMAGES
from ppcls.data.index.class_names import LABEL_LIST, write_class_names
from ppcls.engine.agreement import tell_unshared
from ppcls.engine.checkpoint.output_lock import OutputLock
from ppcls.engine.core.hooks import NO_HOOKS, ProfileWindow, ProgressHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.evaluation.pictures import RunPictures
from ppcls.engine.evaluation.weight_histograms import weight_histograms
from ppcls.engine.loop import fit
from ppcls.engine.profiling.peak import memory_explained
from ppcls.engine.profiling.profile import Profile, build_profile
from ppcls.engine.setup import Prepared, prepare
from ppcls.errors import SignalExit
from ppcls.files import write_text
from ppcls.report.environment import read_hardware, read_versions
from ppcls.report.html import RunInfo
from ppcls.report.reporters import MemoryReporter, Reporters, build_reporters, log_failure
from ppcls.runtime.collectives import fail_together
from ppcls.runtime.start import Runtime


def train(
    config: Config,
    runtime: Runtime,
    output_dir: Path,
    profiled: ProfileWindow | None = None,
    fresh: TrainState | None = None,
) -> TrainState:
    """Trains as the config says, from the start or from a checkpoint.

    Args:
        config: The whole config.
        runtime: Rank and device.
        output_dir: An existing folder that can be written.
        profiled: Steps to profile; None for none.
        fresh: The state to begin with, built by this config and runtime; None to build it.

    Returns:
        The state at the end.

    Raises:
        UserError: Whatever the user must put right.
    """
    advised = suggest_skipping(config.DataLoader.splits)
    with memory_explained(config, runtime), advised, _locked(output_dir, runtime) as note:
        return _train(prepare(config, runtime, output_dir, fresh), config, output_dir, profiled, note)


@contextmanager
def _locked(output_dir: Path, runtime: Runtime) -> Iterator[str]:
    """Keeps other runs out of the output folder, and gives a line for the log or an empty one."""
    lock = None
    with fail_together(runtime):
        if runtime.is_main:
            lock = OutputLock(output_dir)
    try:
        yield lock.note if lock is not None else ""
    finally:
        if lock is not None:
            lock.release()


def _train(
    run: Prepared, config: Config, output_dir: Path, profiled: ProfileWindow | None, note: str
) -> TrainState:
    state, runtime, reporter = run.state, run.state.runtime, Reporters()
    profile: Profile | None = None
    stopped: SignalExit | None = None
    if profiled is not None:
        profile = build_profile(
            profiled, state, config.Global.epochs, output_dir, lambda line: reporter.message(line)
        )
    step = run.step if profile is None else profile.wrap(run.step)
    if runtime.is_main:
        pictures = RunPictures(config, run.indexes.get("DataLoader.Eval"), run.names)
        step = pictures.watch(step)
        write_text(output_dir / "config.yaml", dump_config(config))
        if run.classes:
            write_class_names(output_dir / LABEL_LIST, run.classes)
        reporter = build_reporters(
            output_dir,
            config.Global.use_visualdl,
            None if run.resumed is None else state.update,
            forgiving=config.Global.checkpoint_fallback_dir is not None,
            info=_run_info(config, run, output_dir, pictures),
        )
        if run.measure is not None:
            reporter = Reporters([reporter, MemoryReporter(run.measure, run.evaluator is not None, reporter)])
    try:
        for line in [*run.notes, *tell_unshared(runtime, output_dir), *([note] if note else [])]:
            reporter.message(line, state.update)
        told = ProgressHooks(profile or NO_HOOKS, runtime.progress, runtime.world_size)
        fit(state, config.Global, run.evaluator, run.checkpoints, reporter, told, step)
        reporter.message(
            f"done: {state.epoch} epochs, {state.update} updates; all is in {output_dir}", state.update
        )
    except SignalExit as caught:
        stopped = caught
        reporter.message(f"update {state.update}: {stopped}", state.update)
    except BaseException as error:
        if runtime.is_main:
            log_failure(output_dir, state.update, error)
        raise
    finally:
        if profile is not None:
            profile.close()
        reporter.close()
        if runtime.embedded:  # another process's end lets go of all
            state.loader.release()
            if run.evaluator is not None:
                run.evaluator.release()
    if stopped is not None:
        if runtime.world_size > 1:
            distributed.barrier()  # for the launcher kills the others soon after the first has ended
        raise stopped
    return state


def _run_info(config: Config, run: Prepared, output_dir: Path, pictures: RunPictures) -> RunInfo:
    return RunInfo(
        name=f"{config.Arch.name}, {output_dir}",
        config=dump_config(config),
        versions=read_versions(),
        hardware=read_hardware(run.state.runtime),
        bad_images=output_dir / BAD_IMAGES,
        classes=run.names,
        pictures=pictures,
        weights=partial(weight_histograms, run.state.model),
    )

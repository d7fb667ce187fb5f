"""One training run, put together: state, evaluation, checkpoints, reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from paddle import distributed, nn

from ppcls.config.class_folders import class_root
from ppcls.config.dataset import ImageFolderDataset
from ppcls.config.distillation import DistillationModel
from ppcls.config.embedding import RecModel
from ppcls.config.load import dump_config
from ppcls.config.model import Arch
from ppcls.config.passed_over import warn_of
from ppcls.config.schema import Config
from ppcls.data.bad_images import skipping_advised
from ppcls.data.build import gpu_memory_need
from ppcls.data.class_names import (
    LABEL_LIST,
    folder_classes,
    other_names,
    read_class_names,
    write_class_names,
)
from ppcls.data.folder_part import describe_folders, describe_loose
from ppcls.data.index import Index
from ppcls.data.quarantine import BAD_IMAGES
from ppcls.engine.agreement import agree, choose_checkpoint, tell_unshared, together
from ppcls.engine.captured import CapturedStep
from ppcls.engine.checkpoint import Checkpoints
from ppcls.engine.evaluate import Evaluator, build_evaluator
from ppcls.engine.execution import choose_step
from ppcls.engine.lock import OutputLock
from ppcls.engine.loop import fit
from ppcls.engine.peak import memory_explained
from ppcls.engine.phases import UNTIMED, Phases, Window
from ppcls.engine.pictures import RunPictures
from ppcls.engine.profile import build_profile
from ppcls.engine.resume import resume
from ppcls.engine.state import TrainState, build_state, rate_scale
from ppcls.engine.step import Step
from ppcls.engine.watchdog import Told
from ppcls.engine.weight_histograms import weight_histograms
from ppcls.engine.weights import read_weights, start_from
from ppcls.errors import Stopped, UserError
from ppcls.files import write_text
from ppcls.memory import Needs, check_room, describe_use
from ppcls.optimizer.name_rules import describe_frozen
from ppcls.report.about import hardware, versions
from ppcls.report.build import Reporters, build_reporters, write_down_end
from ppcls.report.html import About
from ppcls.report.memory import MemoryUse
from ppcls.runtime import Runtime


@dataclass(frozen=True)
class Prepared:
    """A run that is built and has not begun; nothing is written yet.

    Attributes:
        state: At the beginning, or where the checkpoint left it.
        step: Takes its batches.
        evaluator: None where the run does not evaluate.
        checkpoints: Of the run.
        resumed: Checkpoint folder that it goes on from; None for a new run.
        classes: Names by label, where folders give them.
        notes: Lines for the log.
        measure: Tells how much of the GPU's memory DALI took; None where it takes none.
    """

    state: TrainState
    step: Step
    evaluator: Evaluator | None
    checkpoints: Checkpoints
    resumed: Path | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    measure: Callable[[], str] | None


def prepare(
    config: Config,
    runtime: Runtime,
    output_dir: Path,
    fresh: TrainState | None = None,
    *,
    writing: bool = True,
) -> Prepared:
    """Builds a run as the config says; the arguments are those of `train`.

    Without ``writing`` it may be any folder, also one that holds another run.

    Raises:
        UserError: Whatever the user must put right.
    """
    checkpoints = Checkpoints(output_dir, config)
    folder = choose_checkpoint(checkpoints, config.Global.checkpoints, runtime, writing=writing)
    notes = [runtime.describe(), *warn_of(config)]
    with together(runtime):
        classes = _folder_classes(config)
        checkpoints.class_names = _class_names(config, classes)
        state = fresh or build_state(
            config, runtime, lambda model: notes.extend(load_pretrained(config, model, folder))
        )
        notes += _describe(config, state)
        evaluator = (
            build_evaluator(config, runtime, state.precision, sample_by_sample=True)
            if config.Global.eval_during_train
            else None
        )
        assert config.DataLoader.Train is not None  # by build_state
        val = (
            None
            if evaluator is None
            else np.concatenate([each.index.labels for each in evaluator.loaders.values()])
        )
        notes += describe_folders(config.DataLoader.Train.dataset, classes, state.loader.index.labels, val)
        loose = [line for split in config.fed.values() for line in describe_loose(split.dataset)]
        notes += dict.fromkeys(loose)  # both parts of a folder say the same of it
        source = folder or config.Global.pretrained_model
        renamed = other_names(Path(source) / LABEL_LIST, checkpoints.class_names) if source else ""
        if folder is None and renamed:
            notes.append(f"{source}: its classifier is kept, and was of other classes: {renamed}")
        if folder is not None:
            notes += [f"damaged, passed over: {each}" for each in checkpoints.passed_over]
            notes += resume(state, folder, config, has_best=checkpoints.has_best())
            notes += [f"  changed: the classes' labels: {renamed}"] if renamed else []
    agree(config, runtime, _indexes(state, evaluator))
    step, how = choose_step(config, state)
    state.connect(config.Global, overlapping=not isinstance(step, CapturedStep))
    measure = _watch_memory(config, runtime, notes)
    notes.append(how)
    return Prepared(state, step, evaluator, checkpoints, folder, classes, tuple(notes), measure)


def train(
    config: Config,
    runtime: Runtime,
    output_dir: Path,
    profiled: Window | None = None,
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
    advised = skipping_advised(config.DataLoader.splits)
    with memory_explained(config, runtime), advised, _locked(output_dir, runtime) as note:
        return _train(prepare(config, runtime, output_dir, fresh), config, output_dir, profiled, note)


@contextmanager
def _locked(output_dir: Path, runtime: Runtime) -> Iterator[str]:
    """Keeps other runs out of the output folder, and gives a line for the log or an empty one."""
    lock = None
    with together(runtime):
        if runtime.is_main:
            lock = OutputLock(output_dir)
    try:
        yield lock.note if lock is not None else ""
    finally:
        if lock is not None:
            lock.release()


def _train(run: Prepared, config: Config, output_dir: Path, profiled: Window | None, note: str) -> TrainState:
    state, runtime, reporter = run.state, run.state.runtime, Reporters()
    phases: Phases = UNTIMED
    stopped: Stopped | None = None
    if profiled is not None:
        phases = build_profile(
            profiled, state, config.Global.epochs, output_dir, lambda line: reporter.message(line)
        )
    step = run.step
    if runtime.is_main:
        names = _class_names(config, run.classes)
        pictures = RunPictures(config, _indexes(state, run.evaluator).get("DataLoader.Eval"), names)
        step = pictures.watch(run.step)
        write_text(output_dir / "config.yaml", dump_config(config))
        if run.classes:
            write_class_names(output_dir / LABEL_LIST, run.classes)
        reporter = build_reporters(
            output_dir,
            config.Global.use_visualdl,
            None if run.resumed is None else state.update,
            forgiving=config.Global.checkpoint_fallback_dir is not None,
            about=_about(config, run, output_dir, pictures, names),
        )
        if run.measure is not None:
            reporter = Reporters([reporter, MemoryUse(run.measure, run.evaluator is not None, reporter)])
    try:
        for line in [*run.notes, *tell_unshared(runtime, output_dir), *([note] if note else [])]:
            reporter.message(line)
        told = Told(phases, runtime.progress, runtime.world)
        fit(state, config.Global, run.evaluator, run.checkpoints, reporter, told, step)
        reporter.message(f"done: {state.epoch} epochs, {state.update} updates; all is in {output_dir}")
    except Stopped as caught:
        stopped = caught
        reporter.message(f"update {state.update}: {stopped}")
    except BaseException as error:
        if runtime.is_main:
            write_down_end(output_dir, state.update, error)
        raise
    finally:
        phases.close()
        reporter.close()
        if runtime.lent:  # another process's end lets go of all
            state.loader.release()
            if run.evaluator is not None:
                run.evaluator.release()
    if stopped is not None:
        if runtime.world > 1:
            distributed.barrier()  # for the launcher kills the others soon after the first has ended
        raise stopped
    return state


def _about(
    config: Config, run: Prepared, output_dir: Path, pictures: RunPictures, names: tuple[str, ...]
) -> About:
    return About(
        name=f"{config.Arch.name}, {output_dir}",
        config=dump_config(config),
        versions=versions(),
        hardware=hardware(run.state.runtime),
        bad_images=output_dir / BAD_IMAGES,
        classes=names,
        pictures=pictures,
        weights=partial(weight_histograms, run.state.model),
    )


def _class_names(config: Config, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the classes' names, of folders or of inference's list where there is one; else none."""
    named = config.Infer.PostProcess.class_id_map_file if config.Infer is not None else None
    if folders or named is None or not Path(named).is_file():
        return folders
    try:
        return read_class_names(Path(named), config.Arch.class_num)
    except UserError:  # inference says so; training does without
        return ()


def _describe(config: Config, state: TrainState) -> list[str]:
    world = state.runtime.world
    notes = [f"{config.Arch.name}, {state.precision.name}, {len(state.loader)} batches an epoch"]
    if isinstance(config.Arch, (DistillationModel, RecModel)):
        notes.append(config.Arch.describe())
    if (scale := rate_scale(config, state.loader)) is not None:
        notes.append(scale.describe())
    if state.frozen:
        notes.append(describe_frozen(state.frozen, state.model))
    if config.Global.sync_bn:
        alone = "one process: Global.sync_bn has nothing to do"
        notes.append(f"BatchNorm over the batches of {f'all {world} processes' if world > 1 else alone}")
    return notes


def _indexes(state: TrainState, evaluator: Evaluator | None) -> dict[str, Index]:
    evaluated = evaluator.loaders if evaluator is not None else {}
    loaders = {"Train": state.loader, **evaluated}
    return {f"DataLoader.{place}": loader.index for place, loader in loaders.items()}


def _watch_memory(config: Config, runtime: Runtime, notes: list[str]) -> Callable[[], str] | None:
    """Notes how the GPU's memory is divided, and returns what tells, later, how much DALI took of it.

    Raises:
        UserError: Too little is left for DALI.
    """
    budget = runtime.budget
    if budget is None:
        return None
    notes.append(budget.describe())
    needs = Needs(
        {
            place.lower(): need
            for place, split in config.fed.items()
            if (need := gpu_memory_need(config, split, runtime))
        }
    )
    if not needs.pipelines:
        return None
    before = runtime.memory_usage()
    notes.append(check_room(budget, needs, before))
    return lambda: describe_use(budget, needs, before, runtime.memory_usage())


def _folder_classes(config: Config) -> tuple[str, ...]:
    """Returns the class names where folders give them, the same ones to both splits.

    Raises:
        UserError: Training and evaluation have other class folders, so labels would mean other classes.
    """
    folders = [
        class_root(Path(split.dataset.image_root), split.dataset.part)[0]
        for place, split in config.fed.items()
        if isinstance(split.dataset, ImageFolderDataset)
        and (place == "Train" or config.Global.eval_mode == "classification")
    ]
    named = [folder_classes(folder) for folder in folders if folder.is_dir()]
    if len(named) == 2 and named[0] != named[1]:
        other = sorted(set(named[0]) ^ set(named[1]))
        raise UserError(
            f"{folders[0]} and {folders[1]} have other class folders: {', '.join(other[:10])} only in one; "
            "a label is a folder's place among the sorted names, so both need the same"
        )
    return named[0] if named else ()


def load_pretrained(config: Config, model: nn.Layer, resumed: Path | None = None) -> list[str]:
    """Fills a fresh model from ``Global.pretrained_model``, or its own weights; returns a line for the log.

    Does nothing where none is given, or a checkpoint is ``resumed``.

    Raises:
        UserError: The weights can't be read or are another model's.
    """
    arch = config.Arch
    own = None
    if isinstance(arch, DistillationModel):
        own = arch.weights_of(arch.student)
    elif isinstance(arch, Arch):
        own = arch.weights
    source = config.Global.pretrained_model or own
    if resumed is not None:
        return []
    if not source and isinstance(arch, RecModel) and arch.Backbone.weights:
        return [f"weights of the backbone from {arch.Backbone.weights}"]
    if not source:
        text = "no weights to start from (Global.pretrained_model): training from the start"
        frozen = config.Optimizer.freeze is not None or config.Optimizer.train_only is not None
        return [f"{text}; what is frozen stays random" if frozen else text]
    fresh = start_from(model, read_weights(Path(source)), source)
    kept = f"; {', '.join(fresh)} start afresh for {config.Arch.class_num} classes" if fresh else ""
    return [f"weights from {source}{kept}"]

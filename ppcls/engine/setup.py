"""A run that is put together and has not begun: state, evaluation, checkpoints, and what there is to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ppcls.config.class_folders import find_class_root
from ppcls.config.compat import config_warnings
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.embedding import RecModel
from ppcls.config.schema import Config
from ppcls.config.sections.dataset import ImageFolderDataset
from ppcls.data.build import gpu_memory_need
from ppcls.data.index.class_names import LABEL_LIST, changed_class_names, list_class_folders, read_class_names
from ppcls.data.index.folders import describe_folders, describe_unclassified_images
from ppcls.data.index.read import Index
from ppcls.engine.agreement import agree, choose_checkpoint
from ppcls.engine.checkpoint.checkpoints import Checkpoints
from ppcls.engine.checkpoint.pretrained import load_pretrained
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.build import build_state, rate_scale
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.evaluation.evaluate import Evaluator, build_evaluator
from ppcls.engine.execution import choose_step
from ppcls.errors import UserError
from ppcls.optimizer.name_rules import describe_frozen
from ppcls.runtime.collectives import fail_together
from ppcls.runtime.memory import MemoryNeeds, check_dali_memory, describe_memory_use
from ppcls.runtime.start import Runtime


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
        names: Names by label, where anything gives them.
        indexes: The data sets that it is fed with, by their places in the config.
        notes: Lines for the log.
        measure: Tells how much of the GPU's memory DALI took; None where it takes none.
    """

    state: TrainState
    step: Step
    evaluator: Evaluator | None
    checkpoints: Checkpoints
    resumed: Path | None
    classes: tuple[str, ...]
    names: tuple[str, ...]
    indexes: Mapping[str, Index]
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
    notes = [runtime.describe(), *config_warnings(config)]
    with fail_together(runtime):
        classes = _folder_classes(config)
        checkpoints.class_names = names = _class_names(config, classes)
        state = fresh or build_state(
            config, runtime, lambda model: notes.extend(load_pretrained(config, model, folder))
        )
        notes += _describe(config, state)
        evaluator = (
            build_evaluator(config, runtime, state.precision, sample_by_sample=True)
            if config.Global.eval_during_train
            else None
        )
        notes += _describe_data(config, classes, state, evaluator)
        notes += _go_on(state, config, checkpoints, folder)
    indexes = _indexes(state, evaluator)
    agree(config, runtime, indexes)
    step, how = choose_step(config, state)
    state.connect(config.Global, overlapping=not isinstance(step, GraphedStep))
    measure = _watch_memory(config, runtime, notes)
    notes.append(how)
    return Prepared(
        state, step, evaluator, checkpoints, folder, classes, names, indexes, tuple(notes), measure
    )


def _describe_data(
    config: Config, classes: tuple[str, ...], state: TrainState, evaluator: Evaluator | None
) -> list[str]:
    assert config.DataLoader.Train is not None  # by build_state
    val = (
        None
        if evaluator is None
        else np.concatenate([each.index.labels for each in evaluator.loaders.values()])
    )
    notes = describe_folders(config.DataLoader.Train.dataset, classes, state.loader.index.labels, val)
    loose = [
        line for split in config.used_splits.values() for line in describe_unclassified_images(split.dataset)
    ]
    return [*notes, *dict.fromkeys(loose)]  # both parts of a folder say the same of it


def _go_on(state: TrainState, config: Config, checkpoints: Checkpoints, folder: Path | None) -> list[str]:
    """Fills the state from a checkpoint, where there is one; says what changes by it, or by other weights."""
    source = folder or config.Global.pretrained_model
    renamed = changed_class_names(Path(source) / LABEL_LIST, checkpoints.class_names) if source else ""
    if folder is None:
        return [f"{source}: its classifier is kept, and was of other classes: {renamed}"] if renamed else []
    notes = [f"damaged, passed over: {each}" for each in checkpoints.damaged]
    notes += resume(state, folder, config, has_best=checkpoints.has_best())
    return [*notes, f"  changed: the classes' labels: {renamed}"] if renamed else notes


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
    world = state.runtime.world_size
    notes = [f"{config.Arch.name}, {state.precision.name}, {len(state.loader)} batches an epoch"]
    if isinstance(config.Arch, (DistillationModel, RecModel)):
        notes.append(config.Arch.describe())
    if (scale := rate_scale(config.Global, state.loader.order)) is not None:
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
    needs = MemoryNeeds(
        {
            place.lower(): need
            for place, split in config.used_splits.items()
            if config.Global.use_dali and (need := gpu_memory_need(split, runtime))
        }
    )
    if not needs.pipelines:
        return None
    before = runtime.memory_usage()
    notes.append(check_dali_memory(budget, needs, before))
    return lambda: describe_memory_use(budget, needs, before, runtime.memory_usage())


def _folder_classes(config: Config) -> tuple[str, ...]:
    """Returns the class names where folders give them, the same ones to both splits.

    Raises:
        UserError: Training and evaluation have other class folders, so labels would mean other classes.
    """
    folders = [
        find_class_root(Path(split.dataset.image_root), split.dataset.part)[0]
        for place, split in config.used_splits.items()
        if isinstance(split.dataset, ImageFolderDataset)
        and (place == "Train" or config.Global.eval_mode == "classification")
    ]
    named = [list_class_folders(folder) for folder in folders if folder.is_dir()]
    if len(named) == 2 and named[0] != named[1]:
        other = sorted(set(named[0]) ^ set(named[1]))
        raise UserError(
            f"{folders[0]} and {folders[1]} have other class folders: {', '.join(other[:10])} only in one; "
            "a label is a folder's place among the sorted names, so both need the same"
        )
    return named[0] if named else ()

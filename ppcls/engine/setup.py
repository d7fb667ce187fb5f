"""Builds a run from a config: state, evaluator, checkpoints, reports, observers, and notes for the log.

A `Run` is complete and frozen when it is built. It is built in two steps, because a dry run and a search for
the learning rate need the first one only: `_assemble` writes no file, so a run that can't start leaves no
trace in the output folder. `record_run` then opens the files of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from paddle import nn

from ppcls.arch.distillation_model import DistillationModel
from ppcls.arch.rec_model import RecModel
from ppcls.arch.section import AUTO, Arch
from ppcls.config.base.yaml import dump_section
from ppcls.config.compat import config_warnings
from ppcls.config.schema import Config
from ppcls.data.build import gpu_memory_need
from ppcls.data.index.class_names import (
    LABEL_LIST,
    changed_class_names,
    describe_other_classes,
    find_names_file,
    read_class_names,
)
from ppcls.data.index.files import FileIndex, describe_skipped
from ppcls.data.index.folders import (
    describe_imbalance,
)
from ppcls.data.index.protocol import Index
from ppcls.engine.agreement import agree, choose_checkpoint
from ppcls.engine.checkpoint.checkpoints import Checkpoints
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.build import build_state, rate_scale
from ppcls.engine.core.state import TrainState
from ppcls.engine.cuda_graph.graphed_forward import GraphedForward
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.evaluation.evaluate import build_evaluator
from ppcls.engine.execution import connect
from ppcls.engine.loop import Run, all_indexes, all_loaders
from ppcls.engine.preprocessing import compare_preprocessing
from ppcls.engine.recording import Recording, record_run
from ppcls.errors import UserError
from ppcls.optimizer.base import Optimizer
from ppcls.optimizer.name_rules import describe_frozen
from ppcls.postprocess.section import Infer
from ppcls.runtime.collectives import fail_together
from ppcls.runtime.memory import MemoryNeeds, check_dali_memory, describe_memory_use
from ppcls.runtime.start import Runtime
from ppcls.weights.files import fetch_weights, read_weights, start_from
from ppcls.zoo import architecture, nearest_with_weights

_LARGE_FLOPS = 1_500_000_000  # FLOPs from which an architecture is reported as slow on a CPU
_SMALL_DATA = 20_000  # largest number of training images for which `Arch.pretrained: auto` loads weights
_SMALL = "MobileNetV3_small_x1_0"


def build_run(
    config: Config,
    runtime: Runtime,
    output_dir: Path,
    state: TrainState | None = None,
    recording: Recording | None = None,
) -> Run:
    """Builds a new or resumed run.

    Args:
        state: State of a new run, built from the same config; None to build it here.
        recording: Files and observers of the run; None for a run that only measures and writes no file. A
            run with files needs an output folder without another run.

    Raises:
        UserError: The config, the data, a checkpoint or the hardware does not allow the run.
    """
    run = _assemble(config, runtime, output_dir, state, writing=recording is not None)
    return run if recording is None else record_run(config, run, output_dir, recording)


def _assemble(
    config: Config, runtime: Runtime, output_dir: Path, state: TrainState | None, *, writing: bool
) -> Run:
    """Builds a run without reports and observers. Writes no file."""
    checkpoints = Checkpoints(output_dir, config.Global, dump_section(config))
    resumed = choose_checkpoint(checkpoints, config.Global.checkpoints, runtime, writing=writing)
    notes = [*config.notes, runtime.describe(), *config_warnings(config)]
    with fail_together(runtime):
        classes = _read_folder_classes(config)
        checkpoints.class_names = classes or _read_listed_classes(config.Infer, config.Arch.class_num)
        if state is None:
            state = build_state(
                config,
                runtime,
                lambda model, images: notes.extend(load_pretrained(config, model, images, resumed)),
            )
        notes += _describe_model(config, state)
        evaluator = None
        if config.Global.eval_during_train:
            evaluator = build_evaluator(config, runtime, state.precision, sample_by_sample=True)
        indexes = all_indexes(all_loaders(state, evaluator))
        notes += _describe_data(config, indexes, checkpoints.class_names, classes)
        notes += _restore(state, checkpoints, resumed, config.Global.pretrained_model)
    agree(config.model_dump(mode="json"), runtime, indexes)
    state, step, execution = connect(config, state)
    if isinstance(step, GraphedStep) and evaluator is not None:
        evaluator = replace(evaluator, forward=GraphedForward(step.capture, lambda: step.captured))
    memory_report = _check_memory(config, runtime, notes)
    if runtime.device == "gpu" or isinstance(step, GraphedStep):  # a CPU offers no choice
        notes.append(execution)
    return Run(
        state,
        config.Global,
        checkpoints,
        evaluator,
        step=step,
        resumed=resumed,
        folder_classes=classes,
        notes=tuple(notes),
        memory_report=memory_report,
    )


def load_pretrained(config: Config, model: nn.Layer, images: int, resumed: Path | None = None) -> list[str]:
    """Loads the initial weights that the config sets. Does nothing if the run resumes from a checkpoint.

    Args:
        model: Model with random weights.
        images: Number of training images. ``Arch.pretrained: auto`` depends on it.
        resumed: Checkpoint that the run resumes from; None for a new run.

    Returns:
        Lines for the log.

    Raises:
        UserError: The weights can't be read or do not fit the model.
    """
    if resumed is not None:
        return []
    arch = config.Arch
    source = config.Global.pretrained_model
    if not source and isinstance(arch, Arch) and arch.pretrained == AUTO:
        return _load_automatically(config, arch, model, images)
    if not source and isinstance(arch, DistillationModel):
        source = arch.initial_weights(arch.student)
    elif not source and isinstance(arch, Arch):
        source = arch.weights
    section = arch.inferred
    if not source and isinstance(section, RecModel) and section.Backbone.weights:
        return [f"weights of the backbone from {section.Backbone.weights}"]
    if not source:
        return [f"no initial weights (Global.pretrained_model): {_from_scratch(config.Optimizer)}"]
    return _start_from(config, model, source)


def _start_from(config: Config, model: nn.Layer, source: str) -> list[str]:
    """Loads initial weights into a new model; returns lines for the log."""
    started = start_from(model, read_weights(Path(source)), source)
    lines = [f"weights from {source}"]
    if started.random:
        lines[0] += f"; {', '.join(started.random)} are random, for {config.Arch.class_num} classes"
    if started.adapted:
        lines.append(started.adapted)
    return [*lines, *compare_preprocessing(config.chains, config.Arch.name, source)]


def _from_scratch(spec: Optimizer) -> str:
    frozen = spec.freeze is not None or spec.train_only is not None
    return f"training from scratch{'; frozen weights stay random' if frozen else ''}"


def _load_automatically(config: Config, arch: Arch, model: nn.Layer, images: int) -> list[str]:
    """Loads published weights if they exist, can be downloaded, and the data set is small.

    Returns:
        Lines for the log.
    """
    published = arch.model_copy(update={"pretrained": True}).weights
    if not architecture(arch.name).top1 or published is None:
        reason = (
            f"{arch.name} has no published weights; nearest with weights: "
            f"{', '.join(nearest_with_weights(arch.name))}"
        )
    elif arch.timm_variant:
        reason = "published weights do not fit Arch.timm_variant"
    elif images > _SMALL_DATA:
        reason = f"{images:,} training images are more than {_SMALL_DATA:,}"
    else:
        try:
            fetch_weights(Path(published), retry=False)
            lines = _start_from(config, model, published)
        except UserError as error:
            reason = str(error)
        else:
            return [*lines, "chosen by Arch.pretrained=auto; Arch.pretrained=False trains from scratch"]
    return [f"{_from_scratch(config.Optimizer)} (Arch.pretrained=auto): {reason}"]


def _restore(
    state: TrainState, checkpoints: Checkpoints, resumed: Path | None, pretrained: str | None
) -> list[str]:
    """Restores the state if the run resumes from a checkpoint.

    Args:
        resumed: Checkpoint that the run resumes from; None for a new run.
        pretrained: Initial weights of a new run, ``Global.pretrained_model``.

    Returns:
        Lines for the log about the checkpoint and about renamed classes.
    """
    source = resumed or pretrained
    renamed = changed_class_names(Path(source) / LABEL_LIST, checkpoints.class_names) if source else ""
    if resumed is None:
        note = f"{source}: the classifier is used, although its classes had other names: {renamed}"
        return [note] if renamed else []
    if changes := describe_other_classes(resumed / LABEL_LIST, checkpoints.class_names):
        raise UserError(
            f"{resumed}: can't resume, because the classes changed: {changes}; start a new run from its "
            f"weights: set another Global.output_dir and Global.pretrained_model={resumed}, without "
            "Global.checkpoints (ppcls train: --output NEW --pretrained CHECKPOINT, without --resume)"
        )
    notes = [f"skipped a damaged checkpoint: {problem}" for problem in checkpoints.damaged]
    notes += resume(state, resumed, best_score=checkpoints.best_score(state.judge))
    return [*notes, f"  changed: the class names: {renamed}"] if renamed else notes


def _describe_model(config: Config, state: TrainState) -> list[str]:
    world = state.runtime.world_size
    notes = [f"{config.Arch.name}, {state.precision.name}, {len(state.loader)} batches per epoch"]
    if state.runtime.device == "cpu":
        notes += suggest_small_model(config.Arch.name, config.Global.image_shape)
    if isinstance(config.Arch, (DistillationModel, RecModel)):
        notes.append(config.Arch.describe())
    if (scale := rate_scale(config.Global, state.loader.order)) is not None:
        notes.append(scale.describe())
    if state.frozen:
        notes.append(describe_frozen(state.frozen, state.model))
    if config.Global.sync_bn:
        alone = "one process: Global.sync_bn has no effect"
        notes.append(f"BatchNorm over the batches of {f'all {world} processes' if world > 1 else alone}")
    return notes


def suggest_small_model(name: str, image_shape: Sequence[int]) -> list[str]:
    """Returns a log line if an architecture is slow on a CPU with images of this shape [C, H, W]."""
    arch = architecture(name)
    small = architecture(_SMALL)
    if arch.flops * image_shape[1] * image_shape[2] < _LARGE_FLOPS * arch.side**2:
        return []
    return [
        f"{name} is slow on a CPU; {_SMALL} needs about 1/{arch.flops / small.flops:.0f} of its operations "
        f"(--model {_SMALL})"
    ]


def _describe_data(
    config: Config, indexes: Mapping[str, Index], names: Sequence[str], folder_classes: Sequence[str]
) -> list[str]:
    """Returns lines for the log about the images and their classes.

    Args:
        indexes: Indexes of all data sets, see `Run.indexes`.
        names: Class names in order of label; empty if unknown.
        folder_classes: Class names from the class folders; empty without class folders.
    """
    train = config.DataLoader.need_train()
    evaluated = [index.labels for name, index in indexes.items() if name != "DataLoader.Train"]
    trained = indexes["DataLoader.Train"].labels
    labels = np.concatenate(evaluated) if evaluated else None
    notes = train.dataset.describe_classes(folder_classes, trained, labels)
    unclassified = [
        line for split in config.used_splits.values() for line in split.dataset.describe_ignored()
    ]
    for index in indexes.values():
        if isinstance(index, FileIndex) and (line := describe_skipped(index.root, index.skipped)):
            unclassified.append(line)
    if imbalance := describe_imbalance(trained, names):
        notes.append(imbalance)
    return [*notes, *dict.fromkeys(unclassified)]  # both splits of one folder yield the same lines


def _read_listed_classes(infer: Infer | None, classes: int) -> tuple[str, ...]:
    """Returns the class names in ``class_id_map_file``.

    Returns an empty tuple if the file is missing or invalid, which inference reports as an error.
    """
    named = infer.PostProcess.class_id_map_file if infer is not None else None
    path = find_names_file(named) if named else None
    if path is None:
        return ()
    try:
        return read_class_names(path, classes)
    except UserError:
        return ()


def _read_folder_classes(config: Config) -> tuple[str, ...]:
    """Returns the names of the class folders in the order of their labels; an empty tuple without folders."""
    for name, split in config.used_splits.items():
        has_classes = name == "Train" or config.Global.eval_mode == "classification"
        if has_classes and split.dataset.class_root is not None:
            return split.dataset.folder_classes
    return ()


def _check_memory(config: Config, runtime: Runtime, notes: list[str]) -> Callable[[], str] | None:
    """Checks that the GPU memory is enough for DALI, and adds notes about the memory.

    Returns:
        Function that returns a line about DALI's actual memory use, to call during training; None if DALI
        uses no GPU memory.
    """
    budget = runtime.budget
    if budget is None:
        return None
    notes.append(budget.describe())
    needs = MemoryNeeds(
        {
            name.lower(): need
            for name, split in config.used_splits.items()
            if config.Global.use_dali and (need := gpu_memory_need(split, runtime))
        }
    )
    if not needs.pipelines:
        return None
    before = runtime.memory_usage()
    notes.append(check_dali_memory(budget, needs, before))
    return lambda: describe_memory_use(budget, needs, before, runtime.memory_usage())

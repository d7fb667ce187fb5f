"""Builds a run from a config: state, evaluator, checkpoints, reports, observers, and notes for the log.

A `Run` is complete and frozen when it is built. `record_run` opens its files last, so that a run that can't
start leaves no trace in the output folder. A dry run and a search for the learning rate open no files.

Decisions:
- Rank 0 chooses the checkpoint before anything is built: with one, the initial weights are not read, and may
  no longer exist.
- Ranks exchange nothing while they build the model and read the data. A rank that fails raises its error in
  `fail_together`, and the others end too instead of waiting for it.
- Ranks are connected only after all of them have agreed on config, data and software. Gradients of different
  models would otherwise be averaged without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from ppcls.arch.batch_statistics import largest_momentum
from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.fuse import InferenceLayers
from ppcls.arch.section import Arch
from ppcls.audit.run_part import RunAudit
from ppcls.config.base.yaml import dump_section
from ppcls.data.build import build_statistics_loader, gpu_memory_need
from ppcls.data.images.skipped import describe_skipped
from ppcls.data.index.class_names import (
    LABEL_LIST,
    changed_class_names,
    choose_names_file,
    describe_other_classes,
    join_first,
    read_class_names,
)
from ppcls.data.index.consistency import describe_labels
from ppcls.data.index.files import FileIndex
from ppcls.data.index.folders import (
    describe_imbalance,
)
from ppcls.data.index.protocol import Index
from ppcls.data.sampling.epoch_ends import describe_epoch_ends
from ppcls.data.section import Split
from ppcls.engine.agreement import agree, choose_checkpoint
from ppcls.engine.checkpoint.checkpoints import Checkpoints
from ppcls.engine.checkpoint.disk_space import describe_disk_space
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.build import build_state, rate_scale
from ppcls.engine.core.networks import beside_prefixes
from ppcls.engine.core.precision import Precision
from ppcls.engine.core.settings import EngineSettings
from ppcls.engine.core.state import TrainState
from ppcls.engine.cuda_graph.graphed_forward import GraphedForward
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.evaluation.evaluate import build_evaluator
from ppcls.engine.evaluation.gap import GapMonitor
from ppcls.engine.evaluation.labels import compare_listed_data, compare_teachers
from ppcls.engine.evaluation.report_inputs import ReportImages
from ppcls.engine.execution import connect, fusion_blocker
from ppcls.engine.head.expectation import Choice
from ppcls.engine.head.fit import fit_head_epoch
from ppcls.engine.head.label_check import LabelCheck
from ppcls.engine.health.time_limit import TimeLimit
from ppcls.engine.initial_weights import InitialWeights
from ppcls.engine.loop import Run, all_indexes, all_loaders
from ppcls.engine.recording import Recording, load_for_features, load_heat_maps, record_run
from ppcls.errors import UserError, counted
from ppcls.optimizer.name_rules import describe_frozen
from ppcls.postprocess.section import Infer
from ppcls.runtime.collectives import fail_together
from ppcls.runtime.memory import MemoryNeeds, check_dali_memory, describe_memory_use
from ppcls.runtime.start import Runtime
from ppcls.weights.store import BEST, newest
from ppcls.zoo import architecture

if TYPE_CHECKING:
    from ppcls.recipe.schema import Config

_LARGE_FLOPS = 1_500_000_000  # FLOPs from which an architecture is reported as slow on a CPU
_SMALL = "MobileNetV3_small_x1_0"
_AUDITED = {"DataLoader.Train": "train", "DataLoader.Eval": "val"}  # names of the splits in findings
_TRAIN = "DataLoader.Train"


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
    settings = config.Global
    splits = config.used_splits
    train_split = config.DataLoader.need_train()
    text = dump_section(config)
    checkpoints = Checkpoints(output_dir, settings, text)
    writing = recording is not None
    resumed = choose_checkpoint(checkpoints, settings.checkpoints, runtime, writing=writing)
    notes = [*config.notes, runtime.describe(), *config.key_warnings]
    with fail_together(runtime):
        classes = _read_folder_classes(splits, by_class=settings.eval_mode == "classification")
        checkpoints.class_names = classes
        if not classes:
            checkpoints.class_names, problems = _read_listed_classes(config.Infer, config.Arch.class_num)
            notes += problems
        if resumed is not None:
            _check_classes(resumed, checkpoints.class_names, folders=bool(classes))
        weights = None
        if state is None:
            weights = initial = InitialWeights(
                config.Arch,
                settings.pretrained_model,
                config.chains,
                config.Optimizer.freezes,
                beside_prefixes(config.Arch, config.Loss.Train),
                () if config.Arch.embeds else checkpoints.class_names,
            )
            state = build_state(
                config,
                runtime,
                # A checkpoint replaces the initial weights, which may no longer exist.
                lambda model, images: None if resumed else notes.extend(initial.load(model, images)),
                load_beside=lambda model: None if resumed else notes.extend(initial.load_beside(model)),
            )
        pretrained = weights is not None and resumed is None and not weights.started_from_scratch(notes)
        notes += _describe_model(config.Arch, settings, state, settings.image_shape)
        if state.ema is not None:
            notes += state.ema.describe(settings.epochs, state.updates_per_epoch)
        evaluator = None
        if settings.eval_during_train:
            evaluator = build_evaluator(config, runtime, state.precision, sample_by_sample=True)
        statistics = None
        if evaluator is not None and settings.precise_batch_norm:
            _check_batch_norm(state.model, config.Arch.name)
            statistics = build_statistics_loader(
                train_split,
                settings.precise_batch_norm,
                runtime,
                settings,
                config.Arch,
                config.class_count(training=True),
            )
        indexes = all_indexes(all_loaders(state, evaluator))
        notes += train_split.dataset.describe_classes(classes, *_labels(indexes))
        if config.facts.from_paddleclas:
            notes += describe_epoch_ends(
                len(indexes[_TRAIN]),
                len(state.loader),
                settings.update_freq,
                runtime.world_size,
                drop_last=train_split.sampler.drop_last,
            )
        if runtime.is_main:  # which writes the log; the search for repeated images takes seconds for millions
            notes += describe_labels(
                {name: indexes[f"DataLoader.{name}"] for name in splits},
                checkpoints.class_names,
                config.labelled_classes,
                by_class=settings.eval_mode == "classification",
            )
        if settings.eval_mode == "classification":
            notes += compare_listed_data(splits)
            notes += compare_teachers(config.Arch.teacher_weights, checkpoints.class_names)
        notes += _describe_data(splits, indexes, checkpoints.class_names)
        if weights is not None and resumed is None and writing and settings.eval_mode == "classification":
            notes += _compare_with_head(
                config.Arch,
                indexes[_TRAIN].labels,
                updates=(settings.epochs, state.updates_per_epoch),
                head=config.LinearHead is not None,
                pretrained=pretrained,
                output_dir=output_dir,
            )
        notes += _restore(state, checkpoints, resumed) if resumed is not None else []
        if writing and runtime.is_main:
            notes += describe_disk_space(state, settings, output_dir, settings.epochs - state.epoch)
    # Data and weights may differ between machines. This check needs them, so it can't come earlier.
    agree(config.model_dump(mode="json"), runtime, indexes)
    unfused = fusion_blocker(state, settings, config.Arch) is not None
    state, step, execution = connect(state, settings, config.Arch, train_split)
    if isinstance(step, GraphedStep) and evaluator is not None:
        evaluator = replace(evaluator, forward=GraphedForward(step.capture, lambda: step.captured))
    memory_report = _check_memory(splits if settings.use_dali else {}, runtime, notes)
    # On a CPU, the fused kernels are the only choice, and `autotune` logs it.
    if runtime.device == "gpu" or isinstance(step, GraphedStep) or unfused:
        notes.append(execution)
    run = Run(
        state,
        settings,
        checkpoints,
        evaluator,
        step=step,
        resumed=resumed,
        folder_classes=classes,
        notes=tuple(notes),
        memory_report=memory_report,
        statistics=statistics,
        gap=GapMonitor(config.Arch.momentum_key),
        epoch_trainer=None if config.LinearHead is None else fit_head_epoch,
        pretrained=pretrained,
        limit=TimeLimit.of_run(
            settings.time_limit,
            runtime,
            0 if evaluator is None else sum(len(each.index) for each in evaluator.loaders.values()),
        ),
    )
    if recording is None:
        return run
    find_best = partial(newest, BEST, output_dir, settings.checkpoint_fallback_dir)
    layers = InferenceLayers.choose(config.Arch, settings.fused_kernels, runtime.device, state.precision.name)
    pictures = ReportImages(
        config.DataLoader,
        config.Arch.data_format,
        indexes.get("DataLoader.Eval"),
        checkpoints.class_names,
        partial(load_heat_maps, config.Arch, config.Loss.Train, config.DataLoader.evaluated, find_best),
        RunAudit(
            {_AUDITED[name]: index for name, index in indexes.items() if name in _AUDITED},
            checkpoints.class_names,
            settings.audit_images,
            runtime.cores,
            _build_label_check(
                config.Arch,
                config.DataLoader.evaluated.get("Eval") if settings.eval_mode == "classification" else None,
                partial(load_for_features, layers, config.Loss.Train, find_best),
                state.precision,
                stored=config.LinearHead is not None and config.LinearHead.cache,
            ),
        ),
    )
    pictures.left = lambda: run.limit.for_report
    return record_run(run, output_dir, recording, settings, pictures, text)


def _build_label_check(
    arch: AnyArch,
    evaluated: Split | None,
    load: Callable[[], nn.Layer | None],
    precision: Precision,
    *,
    stored: bool,
) -> LabelCheck | None:
    """Returns the check of labels for the report; None without evaluated images.

    Args:
        evaluated: Data set of the evaluation; None without one.
        load: Function that returns the best model.
        precision: Precision of the run.
        stored: Whether the run has stored the features of its images.
    """
    if evaluated is None:
        return None
    return LabelCheck(load, evaluated.dataset.transform_ops, arch.data_format, precision, stored=stored)


def _check_batch_norm(model: nn.Layer, name: str) -> None:
    """Checks that ``Global.precise_batch_norm`` has statistics to estimate.

    Raises:
        UserError: The model has no BatchNorm layer whose statistics change.
    """
    if largest_momentum(model) is None:
        raise UserError(
            f"Global.precise_batch_norm: {name} has no BatchNorm layer that training updates; remove this key"
        )


def _check_classes(resumed: Path, names: Sequence[str], *, folders: bool) -> None:
    """Raises `UserError` if a run that resumes from a checkpoint would train on other classes.

    This comes before the images are read, whose errors would name only the number of classes.

    Args:
        resumed: Checkpoint folder.
        names: Class names of the training images, in the order of their labels; empty if unknown.
        folders: Whether they are the names of class folders.
    """
    if changes := describe_other_classes(resumed / LABEL_LIST, names, folders=folders):
        raise UserError(
            f"{resumed}: can't resume, because the classes changed: {changes}; start a new run from its "
            f"weights: set another Global.output_dir and Global.pretrained_model={resumed}, without "
            "Global.checkpoints (ppcls train: --output NEW --pretrained CHECKPOINT, without --resume)"
        )


def _restore(state: TrainState, checkpoints: Checkpoints, resumed: Path) -> list[str]:
    """Restores the state of a checkpoint.

    Args:
        resumed: Checkpoint that the run resumes from.

    Returns:
        Lines for the log about the checkpoint and about renamed classes.
    """
    renamed = changed_class_names(resumed / LABEL_LIST, checkpoints.class_names)
    notes = [
        *checkpoints.restored,
        *(f"skipped a damaged checkpoint: {problem}" for problem in checkpoints.damaged),
    ]
    notes += resume(state, resumed, best_score=checkpoints.best_score(state.judge))
    return [*notes, f"  changed: the class names: {renamed}"] if renamed else notes


def _describe_model(
    arch: AnyArch, settings: EngineSettings, state: TrainState, image_shape: Sequence[int]
) -> list[str]:
    world = state.runtime.world_size
    notes = [f"{arch.name}, {state.precision.name}, {counted(len(state.loader), 'batch')} per epoch"]
    if state.runtime.device == "cpu":
        notes += suggest_small_model(arch.name, image_shape)
    if parts := arch.describe():
        notes.append(parts)
    if (scale := rate_scale(settings, state.loader.order)) is not None:
        notes.append(scale.describe())
    if state.frozen:
        notes.append(describe_frozen(state.frozen, state.model))
    if settings.sync_bn:
        alone = "one process: Global.sync_bn has no effect"
        notes.append(f"BatchNorm over the batches of {f'all {world} processes' if world > 1 else alone}")
    return notes


def _compare_with_head(
    arch: AnyArch,
    labels: NDArray[Any],
    *,
    updates: tuple[int, int],
    head: bool,
    pretrained: bool,
    output_dir: Path,
) -> Iterator[str]:
    """Yields whether a linear head or fine-tuning is expected to be better, if the model is one classifier.

    Args:
        labels: Labels of the training images.
        updates: Number of epochs, and number of updates per epoch.
        head: Whether the run fits a linear head.
        pretrained: Whether it starts from pretrained weights.
    """
    if isinstance(arch, Arch) and labels.ndim == 1 and (pretrained or arch.chooses_weights):
        epochs, per_epoch = updates
        classes = len(np.unique(labels))
        choice = Choice(len(labels), classes, epochs, per_epoch, pretrained, head, output_dir)
        yield from choice.describe()


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


def _labels(indexes: Mapping[str, Index]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Returns the labels for training and for evaluation; None without evaluation."""
    evaluated = [index.labels for name, index in indexes.items() if name != _TRAIN]
    return indexes[_TRAIN].labels, np.concatenate(evaluated) if evaluated else None


def _describe_data(
    splits: Mapping[str, Split], indexes: Mapping[str, Index], names: Sequence[str]
) -> list[str]:
    """Returns lines for the log about the balance of classes, and about skipped images.

    Args:
        splits: Data sets of the run, by their keys in ``DataLoader``.
        indexes: Indexes of all data sets, see `Run.indexes`.
        names: Class names in order of label; empty if unknown.
    """
    unclassified = [line for split in splits.values() for line in split.dataset.describe_ignored()]
    for index in indexes.values():
        if isinstance(index, FileIndex) and (line := describe_skipped(index.root, index.skipped)):
            unclassified.append(line)
    imbalance = describe_imbalance(indexes[_TRAIN].labels, names)
    notes = [imbalance] if imbalance else []
    return [*notes, *dict.fromkeys(unclassified)]  # both splits of one folder yield the same lines


def _read_listed_classes(infer: Infer | None, classes: int) -> tuple[tuple[str, ...], list[str]]:
    """Returns the class names in ``class_id_map_file``, and a warning if the file is missing or invalid.

    Training needs no names, so it continues without them.
    """
    named = infer.PostProcess.class_id_map_file if infer is not None else None
    if not named:
        return (), []
    file, reason = choose_names_file(named, classes)
    end = "Set Infer.PostProcess.class_id_map_file to a file with lines of 'id name'"
    if file is None:
        return (), [
            f"warning: {named}: {reason}; predictions will contain class numbers instead of names. {end}"
        ]
    try:
        return read_class_names(file, classes), []
    except UserError as error:
        return (), [f"warning: {error}\nTraining needs no names, but predictions will fail. {end}"]


def _read_folder_classes(splits: Mapping[str, Split], *, by_class: bool) -> tuple[str, ...]:
    """Returns the names of the class folders in the order of their labels; an empty tuple without folders.

    Args:
        splits: Data sets of the run, by their keys in ``DataLoader``.
        by_class: Whether the labels for evaluation are classes. Otherwise, they are identities.

    Raises:
        UserError: The labels for training and for evaluation belong to different names, for example because
            ``class_names`` of only one data set was changed.
    """
    train, evaluation = (splits[name].dataset if name in splits else None for name in ("Train", "Eval"))
    if (
        by_class
        and train is not None
        and evaluation is not None
        and train.class_root is not None
        and evaluation.class_root is not None
        and train.folder_classes != evaluation.folder_classes
    ):
        raise UserError(
            "DataLoader.Eval.dataset.class_names: expected the classes of DataLoader.Train in the order of "
            f"their labels ({join_first(train.folder_classes)}), found "
            f"{join_first(evaluation.folder_classes)}; set this key to null"
        )
    for name, split in splits.items():
        if (name == "Train" or by_class) and split.dataset.class_root is not None:
            return split.dataset.folder_classes
    return ()


def _check_memory(
    splits: Mapping[str, Split], runtime: Runtime, notes: list[str]
) -> Callable[[], str] | None:
    """Checks that the GPU memory is enough for DALI, and adds notes about the memory.

    Args:
        splits: Data sets that DALI loads.
        notes: List to which the notes are added.

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
            for name, split in splits.items()
            if (need := gpu_memory_need(split, runtime, training=name == "Train"))
        }
    )
    if not needs.pipelines:
        return None
    before = runtime.memory_usage()
    notes.append(check_dali_memory(budget, needs, before))
    return lambda: describe_memory_use(budget, needs, before, runtime.memory_usage())

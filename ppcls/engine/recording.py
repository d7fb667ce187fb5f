"""Adds what a run records to the run: files of the output folder, reports, the profile, and users' hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paddle import DataParallel, nn

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.fuse import InferenceLayers
from ppcls.data.bad_images.quarantine import BAD_IMAGES
from ppcls.data.build import dali_settings, describe_feed
from ppcls.data.index.class_names import LABEL_LIST, write_class_names
from ppcls.data.loaders.dali.settings import has_memory_for_pipelines
from ppcls.data.section import Split
from ppcls.engine.advice import RankFeed, advise_ranks
from ppcls.engine.checkpoint.output_folder import OutputFolder
from ppcls.engine.checkpoint.snapshot import CONFIG
from ppcls.engine.core.hooks import ProfileWindow, RunHook, load_hooks
from ppcls.engine.core.networks import Losses, build_network, read_inferred
from ppcls.engine.core.observers import MemoryObserver, Observers, ProgressObserver
from ppcls.engine.core.state import TrainState
from ppcls.engine.evaluation.heat_map import HeatMaps
from ppcls.engine.evaluation.report_inputs import ReportImages, weight_histograms
from ppcls.engine.profiling.profile import build_profile
from ppcls.engine.profiling.scaling import Scaling, ScalingMeter
from ppcls.engine.trainer_status import trainer_status
from ppcls.files import check_replaceable, write_text
from ppcls.report.html import RunInfo
from ppcls.report.record import Reporter
from ppcls.report.reporters import FolderChecks, Reporters, build_reporters
from ppcls.report.settings import ReportSettings
from ppcls.report.summary.environment import read_hardware, read_versions
from ppcls.runtime.collectives import fail_together
from ppcls.storage.run_copy import RunCopy
from ppcls.weights.files import fill_model

if TYPE_CHECKING:  # only for annotations
    from ppcls.engine.loop import Run


@dataclass(frozen=True)
class Recording:
    """What a run records in addition to its checkpoints and reports.

    Attributes:
        hooks: Observers in addition to the hooks of the config.
        profiled: Updates to profile; None without profiling.
        copy: The run in object storage, to which its files are uploaded; None without object storage.
    """

    hooks: Sequence[RunHook] = ()
    profiled: ProfileWindow | None = None
    copy: RunCopy | None = None


def record_run(
    run: Run,
    output_dir: Path,
    recording: Recording,
    reports: ReportSettings,
    pictures: ReportImages,
    config: str,
) -> Run:
    """Returns a run with reports and observers, and opens their files.

    Args:
        run: Run without observers.
        output_dir: Output folder, which no other run uses.
        recording: What is recorded in addition to checkpoints and reports.
        reports: Reports in addition to those of every run.
        pictures: Images for the reports.
        config: Config of the run as YAML text.

    Raises:
        UserError: A hook can't be imported, the profile does not fit the run, or a file can't be written.
    """
    runtime = run.state.runtime
    observers: list[RunHook] = [ProgressObserver(runtime.progress, runtime.world_size)]
    with fail_together(runtime):
        hooks = [*load_hooks(run.settings.hooks), *recording.hooks]
    step = run.step
    if recording.profiled is not None:
        profile = build_profile(recording.profiled, run.state, run.settings.epochs, output_dir)
        step = profile.choose_step(step)
        observers.append(profile)
    elif runtime.world_size > 1:
        if isinstance(run.state.network, DataParallel) and run.settings.find_unused_parameters:
            note = "scaling: not measured, because of Global.find_unused_parameters"
            run = replace(run, notes=(*run.notes, note))
        else:
            scaling = _build_scaling(run.state, run.settings.epochs)
            step = scaling.choose_step(step)
            observers.append(scaling)
    reporter = Reporter()
    output = None
    if runtime.is_main:
        output = run.checkpoints.output = OutputFolder(output_dir)
        observers.append(pictures)
        reporter = _open_reports(config, reports, run, output, pictures)
        if run.memory_report is not None:
            observers.append(MemoryObserver(run.memory_report, run.evaluator is not None))
    return replace(
        run, step=step, reporter=reporter, observers=Observers([*observers, *hooks]), output=output
    )


def _build_scaling(state: TrainState, epochs: int) -> ScalingMeter:
    """Returns the observer that measures the scaling of a run over its ranks.

    Args:
        state: State of the run, new or resumed.
        epochs: Number of epochs of the run.
    """
    runtime = state.runtime
    split = state.config.DataLoader.need_train()

    def describe(scaling: Scaling) -> str:
        feed = describe_feed(split, runtime, state.config.Arch, use_dali=state.config.Global.use_dali)
        decodes_files = split.dataset.transform_ops[0].decodes_images
        hints = advise_ranks(
            RankFeed(
                by_dali=feed.uses_dali,
                dali_can=feed.dali_supported,
                can_share=has_memory_for_pipelines(runtime.card)
                and dali_settings(split, runtime, training=True).decoding != "both",
                cores=runtime.cores,
                workers=split.loader.num_workers,
                decodes=decodes_files,
                caches=split.cache is not None,
            )
        )
        return scaling.describe(hints)

    return ScalingMeter(state, epochs * state.updates_per_epoch, describe)


def _open_reports(
    config: str, settings: ReportSettings, run: Run, output: OutputFolder, pictures: ReportImages
) -> Reporter:
    """Writes the config and the class names to the output folder, and returns the reporter of the run.

    Args:
        config: Config of the run as YAML text.
        output: Output folder. If it is moved, a report that can't be written does not end the run, which must
            first save its state.
        pictures: Images for the reports.
    """
    output_dir = output.path
    has_fallback = run.settings.checkpoint_fallback_dir is not None
    for name in (CONFIG, LABEL_LIST, BAD_IMAGES):
        check_replaceable(output_dir / name)
    write_text(output_dir / CONFIG, config)
    if run.folder_classes:
        write_class_names(output_dir / LABEL_LIST, run.folder_classes)
    info = RunInfo(
        name=f"{run.state.config.Arch.name}, {output_dir}",
        config=config,
        versions=read_versions(),
        hardware=read_hardware(run.state.runtime),
        bad_images=output_dir / BAD_IMAGES,
        classes=run.checkpoints.class_names,
        auditable_root=run.state.config.DataLoader.need_train().dataset.auditable_root,
        from_scratch=run.from_scratch,
        pictures=pictures,
        weights=partial(weight_histograms, run.state.model),
    )
    reporters = build_reporters(
        output_dir,
        settings.use_visualdl,
        None if run.resumed is None else run.state.update,
        FolderChecks(lambda: has_fallback or output.is_moved(), output.is_moved),
        info=info,
        loggers=settings.loggers,
    )
    return Reporters([reporters, *trainer_status()])


def load_heat_maps(
    arch: AnyArch, losses: Losses, evaluated: Mapping[str, Split], find_best: Callable[[], Path | None]
) -> HeatMaps | None:
    """Returns the heat maps of the best model; None without a best model or without evaluation data.

    Args:
        losses: Losses of training, whose weights a checkpoint contains too.
        evaluated: Data sets for evaluation, by their keys in ``DataLoader``.
        find_best: Function that returns the checkpoint of the best model.
    """
    evaluation = evaluated.get("Eval")
    model = None if evaluation is None else load_best(arch, losses, find_best)
    if model is None or evaluation is None:
        return None
    return HeatMaps(model, evaluation.dataset.transform_ops, arch.data_format)


def load_best(arch: AnyArch, losses: Losses, find_best: Callable[[], Path | None]) -> nn.Layer | None:
    """Returns the best model in evaluation mode; None without a best model.

    Args:
        losses: Losses of training, whose weights a checkpoint contains too.
        find_best: Function that returns the checkpoint of the best model.
    """
    best = find_best()
    if best is None:
        return None
    model = build_network(arch)
    fill_model(model, read_inferred(arch, losses, best), best)
    model.eval()
    return model


def load_for_features(
    layers: InferenceLayers, losses: Losses, find_best: Callable[[], Path | None]
) -> nn.Layer | None:
    """Returns the best model with the layers for inference; None without a best model.

    Args:
        layers: Layers and section of the model.
        losses: Losses of training, whose weights a checkpoint contains too.
        find_best: Function that returns the checkpoint of the best model.
    """
    model = load_best(layers.arch, losses, find_best)
    if model is not None:
        layers.apply(model, constant=True)
    return model

"""Executes a training run: locks the output folder, builds the run and its reports, and trains."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paddle import distributed

from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.data.bad_images.quarantine import BAD_IMAGES
from ppcls.data.index.class_names import LABEL_LIST, write_class_names
from ppcls.engine.agreement import describe_unshared
from ppcls.engine.checkpoint.output_lock import OutputLock
from ppcls.engine.core.hooks import ProfileWindow, ProgressHooks, RunHook, load_hooks
from ppcls.engine.core.networks import build_network, read_inferred
from ppcls.engine.core.state import TrainState
from ppcls.engine.evaluation.heat_map import HeatMaps
from ppcls.engine.evaluation.report_inputs import ReportImages, weight_histograms
from ppcls.engine.loop import Run, fit
from ppcls.engine.profiling.peak_memory import explain_out_of_memory
from ppcls.engine.profiling.profile import build_profile
from ppcls.engine.setup import build_run
from ppcls.errors import SignalExit
from ppcls.files import write_text
from ppcls.report.confusion import class_name
from ppcls.report.console import clock
from ppcls.report.environment import read_hardware, read_versions
from ppcls.report.html import RunInfo
from ppcls.report.reporters import MemoryReporter, Reporters, build_reporters, log_failure
from ppcls.runtime.collectives import fail_together
from ppcls.runtime.signals import describe_ignored
from ppcls.runtime.start import Runtime
from ppcls.weights.files import fill_model
from ppcls.weights.store import BEST, LATEST, newest

_SHOWN_CLASSES = 10


def train(
    config: Config,
    runtime: Runtime,
    output_dir: Path,
    profiled: ProfileWindow | None = None,
    state: TrainState | None = None,
    hooks: Sequence[RunHook] = (),
) -> TrainState:
    """Trains a new or resumed run.

    Args:
        output_dir: Existing output folder.
        profiled: Updates to profile; None without profiling.
        state: State of a new run, built from the same config and runtime; None to build it here.
        hooks: Hooks in addition to the hooks of the config.

    Returns:
        The state at the end of the run.

    Raises:
        UserError: The config, the data, a checkpoint or the hardware does not allow the run.
        SignalExit: A signal stopped the run; its state is saved.
    """
    advice = suggest_skipping(config.DataLoader.splits)
    with explain_out_of_memory(config, runtime), advice, _lock(output_dir, runtime) as note:
        run = build_run(config, runtime, output_dir, state)
        run.notes += (note,) if note else ()
        with fail_together(runtime):
            run.run_hooks = (*load_hooks(config.Global.hooks), *hooks)
        if profiled is not None:
            profile = build_profile(profiled, run.state, config.Global.epochs, output_dir, run.log)
            run.hooks = profile
            run.step = profile.wrap(run.step)
        if runtime.is_main:
            _write_reports(config, run, output_dir)
        _train(run, output_dir)
    return run.state


@contextmanager
def _lock(output_dir: Path, runtime: Runtime) -> Iterator[str]:
    """Locks the output folder within the block, so that no other run can use it.

    Yields:
        A line for the log if the file system does not support locks, else an empty string.
    """
    lock = None
    with fail_together(runtime):
        if runtime.is_main:
            lock = OutputLock(output_dir)
    try:
        yield lock.note if lock is not None else ""
    finally:
        if lock is not None:
            lock.release()


def _write_reports(config: Config, run: Run, output_dir: Path) -> None:
    """Writes the config and the class names to the output folder, and sets the reporter of the run."""
    layout = config.Arch.data_format
    names = run.checkpoints.class_names
    heat_maps = partial(_load_heat_maps, config, output_dir)
    pictures = ReportImages(config.DataLoader, layout, run.indexes.get("DataLoader.Eval"), names, heat_maps)
    run.step = pictures.watch(run.step)
    text = dump_config(config)
    write_text(output_dir / "config.yaml", text)
    if run.folder_classes:
        write_class_names(output_dir / LABEL_LIST, run.folder_classes)
    info = RunInfo(
        name=f"{config.Arch.name}, {output_dir}",
        config=text,
        versions=read_versions(),
        hardware=read_hardware(run.state.runtime),
        bad_images=output_dir / BAD_IMAGES,
        classes=names,
        pictures=pictures,
        weights=partial(weight_histograms, run.state.model),
    )
    run.reporter = build_reporters(
        output_dir,
        config.Global.use_visualdl,
        None if run.resumed is None else run.state.update,
        forgiving=config.Global.checkpoint_fallback_dir is not None,
        info=info,
        loggers=config.Global.loggers,
    )
    if run.memory_report is not None:
        memory = MemoryReporter(run.memory_report, run.evaluator is not None, run.reporter)
        run.reporter = Reporters([run.reporter, memory])


def _load_heat_maps(config: Config, output_dir: Path) -> HeatMaps | None:
    """Returns the heat maps of the best model; None without a best model or without evaluation data."""
    best = newest(BEST, output_dir, config.Global.checkpoint_fallback_dir)
    evaluation = config.DataLoader.evaluated.get("Eval")
    if best is None or evaluation is None:
        return None
    model = build_network(config.Arch)
    fill_model(model, read_inferred(config, best), best)
    return HeatMaps(model, evaluation.dataset.transform_ops, config.Arch.data_format)


def summarize(run: Run, output_dir: Path, seconds: float) -> Iterator[str]:
    """Yields the last lines of the log: the best metric, the recall per class, and commands to try next.

    Args:
        seconds: Duration of the run in this process.
    """
    score = run.state.progress.best
    best = f"best {run.state.judge} {abs(score):.4f}; " if score is not None else ""
    yield f"{best}duration {clock(seconds)}; report: {output_dir / 'report.html'}"
    if run.outcomes is not None and run.outcomes.confusion is not None:
        yield describe_recall(run.outcomes.confusion, run.checkpoints.class_names)
        yield from warn_of_one_class(run.outcomes.confusion, run.checkpoints.class_names)
    model = shlex.quote(str(output_dir if run.checkpoints.has_best() else output_dir / LATEST))
    yield f"predict: ppcls infer --model {model} IMAGE"
    yield f"export:  ppcls export --model {model}"
    yield f"serve:   ppcls serve --model {model}"


def describe_recall(confusion: NDArray[np.int64], names: Sequence[str]) -> str:
    """Returns a line with the recall per class. For more than 10 classes, it lists the 10 lowest recalls.

    Args:
        confusion: Confusion matrix, [classes, classes] int64, one row per true class.
        names: Class names in order of label; empty if unknown.
    """
    images = confusion.sum(axis=1)
    labels = np.flatnonzero(images)
    recall = confusion.diagonal()[labels] / images[labels]
    title = "recall per class"
    if len(labels) > _SHOWN_CLASSES:
        worst = np.argsort(recall, kind="stable")[:_SHOWN_CLASSES]
        labels, recall, title = labels[worst], recall[worst], f"lowest recall of {len(labels)} classes"
    parts = [
        f"{class_name(names, label)} {value:.3f} of {images[label]}"
        for label, value in zip(labels.tolist(), recall.tolist(), strict=True)
    ]
    return f"{title}: {', '.join(parts)}"


def warn_of_one_class(confusion: NDArray[np.int64], names: Sequence[str]) -> Iterator[str]:
    """Yields a warning if the model predicts the same class for images of several classes.

    Args:
        confusion: Confusion matrix, [classes, classes] int64, one row per true class, one column per
            predicted class.
        names: Class names in order of label; empty if unknown.
    """
    predicted = np.flatnonzero(confusion.sum(axis=0)).tolist()
    if len(predicted) == 1 and np.count_nonzero(confusion.sum(axis=1)) > 1:
        yield (
            f"warning: the model predicts {class_name(names, predicted[0])} for every validation image; "
            "train longer (--epochs), start from published weights (--pretrained), or change the learning "
            "rate (--lr)"
        )


def _train(run: Run, output_dir: Path) -> None:
    state = run.state
    runtime = run.state.runtime
    stopped: SignalExit | None = None
    failure: BaseException | None = None
    start = time.monotonic()
    run.hooks = ProgressHooks(run.hooks, runtime.progress, runtime.world_size)
    try:
        ignored = "" if runtime.embedded else describe_ignored()
        for line in filter(None, [*run.notes, *describe_unshared(runtime, output_dir), ignored]):
            run.log(line)
        fit(run)
        run.log(f"done: {state.epoch} epochs, {state.update} updates; all files are in {output_dir}")
        for line in summarize(run, output_dir, time.monotonic() - start):
            run.log(line)
        run.reporter.finish()
    except SignalExit as caught:
        failure = stopped = caught
        run.log(f"update {state.update}: {stopped}")
    except BaseException as error:
        failure = error
        if runtime.is_main:
            log_failure(output_dir, state.update, error)
        raise
    finally:
        run.hooks.close()
        try:
            for hook in run.run_hooks:
                hook.on_end(run, failure)
        finally:
            run.reporter.close()
        if runtime.embedded:  # otherwise the process ends soon and frees everything
            run.release()
    if stopped is not None:
        if runtime.world_size > 1:
            distributed.barrier()  # the launcher kills all other ranks soon after one rank ends
        raise stopped

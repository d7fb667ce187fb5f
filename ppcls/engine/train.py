"""Executes a training run: locks the output folder, builds the run and its reports, and trains.

The lock is taken before the run is built. Otherwise, two runs that start together could both find the folder
unused, and write to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from paddle import distributed

from ppcls.commands import command_line
from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.engine.agreement import describe_unshared
from ppcls.engine.checkpoint.output_lock import OutputLock
from ppcls.engine.core.observers import OutcomeKeeper
from ppcls.engine.core.state import TrainState
from ppcls.engine.loop import Run, fit
from ppcls.engine.profiling.peak_memory import explain_out_of_memory
from ppcls.engine.recording import Recording
from ppcls.engine.setup import build_run
from ppcls.errors import MissedTargetError, SignalExit, counted
from ppcls.files.urls import is_url
from ppcls.report.confusion import class_name, label_scores
from ppcls.report.console import clock
from ppcls.report.record import LabelOutcomes, Outcomes
from ppcls.report.reporters import log_failure
from ppcls.report.stored_evaluation import read_best_evaluation
from ppcls.report.summary.certainty import advise, measure_certainty
from ppcls.runtime.collectives import fail_together
from ppcls.runtime.signals import describe_ignored
from ppcls.runtime.start import Runtime
from ppcls.storage.run_copy import RunCopy, RunUploader
from ppcls.weights.store import LATEST

if TYPE_CHECKING:
    from ppcls.recipe.schema import Config

_SHOWN_CLASSES = 10  # number of classes in a line of the log


def train(
    config: Config,
    runtime: Runtime,
    output_dir: Path,
    recording: Recording | None = None,
    state: TrainState | None = None,
) -> TrainState:
    """Trains a new or resumed run.

    Args:
        output_dir: Existing output folder.
        recording: What the run records in addition to its checkpoints and reports; None for nothing.
        state: State of a new run, built from the same config and runtime; None to build it here.

    Returns:
        The state at the end of the run.

    Raises:
        UserError: The config, the data, a checkpoint or the hardware does not allow the run.
        SignalExit: A signal stopped the run; its state is saved.
    """
    recording = recording or Recording()
    advice = suggest_skipping(config.DataLoader.splits)
    with (
        explain_out_of_memory(runtime, config.used_splits, config.Global, config.AMP),
        advice,
        _lock(output_dir, runtime) as note,
        _uploads(recording.copy, runtime) as uploader,
    ):
        outcomes = OutcomeKeeper()
        recording = replace(recording, hooks=[outcomes, *recording.hooks])
        run = build_run(config, runtime, output_dir, state, recording)
        if uploader is not None:
            run.checkpoints.after_write = uploader.after_checkpoint
            run = replace(run, notes=(*run.notes, uploader.describe()))
        _train(run, output_dir, outcomes, note)
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


@contextmanager
def _uploads(copy: RunCopy | None, runtime: Runtime) -> Iterator[RunUploader | None]:
    """Uploads the files of the run on rank 0 at the end of the block, also after an error.

    Yields:
        The uploader of checkpoints; None without object storage, and on other ranks.

    Raises:
        StorageError: The block succeeded, and its last files can't be uploaded.
    """
    if copy is None or not runtime.is_main:
        yield None
        return
    uploader = RunUploader(copy)
    try:
        yield uploader
    except BaseException:  # also Ctrl-C and signals: the log says why the run ended
        uploader.after_failure()
        raise
    uploader.finish()


def summarize(
    run: Run, output_dir: Path, outcomes: Outcomes | LabelOutcomes | None, seconds: float
) -> Iterator[str]:
    """Yields the last lines of the log: the best metric, the recall per class, and commands to try next.

    Args:
        outcomes: Results per image of the evaluation to describe; None if there are none.
        seconds: Duration of the run in this process.
    """
    score = run.state.progress.best
    best = f"best {run.state.judge} {abs(score):.4f}; " if score is not None else ""
    yield f"{best}duration {clock(seconds)}; report: {output_dir / 'report.html'}"
    if isinstance(outcomes, LabelOutcomes):
        yield describe_labels(outcomes, run.checkpoints.class_names)
    elif outcomes is not None and outcomes.confusion is not None:
        names = run.checkpoints.class_names
        yield describe_recall(outcomes.confusion, names)
        all_names = [class_name(names, label) for label in range(len(outcomes.confusion))]
        if (certainty := measure_certainty(outcomes.confusion, all_names)) is not None:
            yield certainty.describe()
            root = run.state.config.DataLoader.need_train().dataset.auditable_root
            accuracy = run.gap.trained("top1")
            yield advise(outcomes.confusion, all_names, accuracy, root, from_scratch=run.from_scratch)
        yield from warn_of_one_class(
            outcomes.confusion, run.checkpoints.class_names, from_scratch=run.from_scratch
        )
    address = run.state.config.Global.output_dir
    model: str | Path = output_dir if run.checkpoints.has_best() else output_dir / LATEST
    if is_url(address):  # the folder is a copy on this machine
        model = address
    trust = ["--trust"] if run.state.config.Global.import_modules else []
    yield f"predict: {command_line('infer', '--model', model, *trust, 'IMAGE')}"
    yield f"export:  {command_line('export', '--model', model, *trust)}"
    yield f"serve:   {command_line('serve', '--model', model, *trust)}"


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
        labels, recall, title = (
            labels[worst],
            recall[worst],
            f"lowest recall of {counted(len(labels), 'class')}",
        )
    parts = [
        f"{class_name(names, label)} {value:.3f} of {images[label]}"
        for label, value in zip(labels.tolist(), recall.tolist(), strict=True)
    ]
    return f"{title}: {', '.join(parts)}"


def describe_labels(outcomes: LabelOutcomes, names: Sequence[str]) -> str:
    """Returns a line with precision and recall per label. For more than 10 labels, it lists the 10 lowest F1.

    Args:
        outcomes: Results of an evaluation with several labels per image.
        names: Names of the labels; empty if unknown.
    """
    labels = label_scores(outcomes, names)
    title = "precision and recall per label"
    if len(labels) > _SHOWN_CLASSES:
        title = f"lowest F1 of {counted(len(labels), 'label')} (precision and recall)"
    parts = [
        f"{label.name} {label.precision:.3f} and {label.recall:.3f} of {label.true}"
        for label in labels[:_SHOWN_CLASSES]
    ]
    return f"{title}: {', '.join(parts)}"


def warn_of_one_class(
    confusion: NDArray[np.int64], names: Sequence[str], *, from_scratch: bool
) -> Iterator[str]:
    """Yields a warning if the model predicts the same class for images of several classes.

    Args:
        confusion: Confusion matrix, [classes, classes] int64, one row per true class, one column per
            predicted class.
        names: Class names in order of label; empty if unknown.
        from_scratch: Whether the run started with random weights.
    """
    predicted = np.flatnonzero(confusion.sum(axis=0)).tolist()
    if len(predicted) == 1 and np.count_nonzero(confusion.sum(axis=1)) > 1:
        weights = ", start from published weights (--pretrained)," if from_scratch else ""
        yield (
            f"warning: the model predicts {class_name(names, predicted[0])} for every validation image; "
            f"train longer (--epochs){weights} or change the learning rate (--lr)"
        )


def _train(run: Run, output_dir: Path, kept: OutcomeKeeper, note: str) -> None:
    """Trains the run, and closes its reports and observers.

    Args:
        kept: Observer of the run that keeps the best results.
        note: Line for the log about the output folder; may be empty.
    """
    state = run.state
    runtime = run.state.runtime
    stopped: SignalExit | None = None
    failure: BaseException | None = None
    start = time.monotonic()
    try:
        ignored = "" if runtime.embedded else describe_ignored()
        for line in filter(None, [*run.notes, note, *describe_unshared(runtime, output_dir), ignored]):
            run.log(line)
        done = state.epoch >= run.settings.epochs and not state.progress.closing
        if run.resumed is not None and done:
            run.log(
                f"nothing to train: the run has all of its {counted(run.settings.epochs, 'epoch')}; to "
                "continue it, set a larger number with --epochs (Global.epochs)"
            )
        fit(run)
        run.log(
            f"done: {counted(state.epoch, 'epoch')}, {counted(state.update, 'update')}; all files are in "
            f"{output_dir}"
        )
        described, reason = _choose_outcomes(run, output_dir, kept)
        for line in (*reason, *summarize(run, output_dir, described, time.monotonic() - start)):
            run.log(line)
        run.reporter.finish()
        run.check_output()
    except SignalExit as caught:
        failure = stopped = caught
        run.log(f"update {state.update}: {stopped}; the state of the run is in {output_dir}")
    except BaseException as error:  # also Ctrl-C in a notebook: hooks and the log get every reason
        failure = error
        if runtime.is_main:
            log_failure(run.checkpoints.root, state.update, error)
        raise
    finally:
        try:
            run.observers.on_end(run, failure)
        finally:
            run.reporter.close()
        if runtime.embedded:  # otherwise the process ends soon and frees everything
            run.release()
    if stopped is not None:
        if runtime.world_size > 1:
            distributed.barrier()  # the launcher kills all other ranks soon after one rank ends
        raise stopped
    if missed := missed_targets(state):
        raise MissedTargetError(f"epoch {state.epoch}: {missed}; the model is saved in {output_dir}")


def _choose_outcomes(
    run: Run, output_dir: Path, kept: OutcomeKeeper
) -> tuple[Outcomes | LabelOutcomes | None, list[str]]:
    """Returns the results of the best evaluation, and lines for the log if they are of another one.

    The best evaluation can be older than the resume, and its results are then in a file.
    """
    if kept.best or run.resumed is None or not run.state.runtime.is_main:
        return kept.outcomes, []
    stored = read_best_evaluation(output_dir)
    if stored is not None:
        return stored.outcomes, []
    if kept.outcomes is None:
        return None, []
    return kept.outcomes, [
        "the best evaluation was before the run resumed, and its results per image are missing: recall and "
        "accuracy below are those of this run's first evaluation"
    ]


def missed_targets(state: TrainState) -> str:
    """Describes the metrics of the last evaluation that are worse than ``Global.target``; "" if none are."""
    metrics = state.progress.metrics
    classes = state.config.Arch.class_num
    specs = {name: spec for spec in state.config.Metric.Eval for name in spec.all_names(classes)}
    missed = []
    for name, target in (state.config.Global.target or {}).items():
        value = metrics.get(name, math.nan)
        lower_is_better = specs[name].lower_is_better
        reached = value <= target if lower_is_better else value >= target
        if not reached:
            bound = "at most" if lower_is_better else "at least"
            missed.append(f"{name} is {value:.4f}, but Global.target requires {bound} {target:g}")
    return "; ".join(missed)

"""The training loop: it trains an epoch, evaluates the model, and saves a checkpoint.

Decisions:
- Losses, metrics and overflows stay on the device until a log line, a checkpoint or the end of an epoch needs
  them. To read a number in each step would make the host wait for the device each time.
- A run stops only between two updates, and all ranks at the same one, so that the saved state is that of a
  run that was not interrupted.
- A model is checked for non-finite losses before it is saved, not only at log lines: otherwise a run that
  diverged between two log lines would save a bad model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.data.bad_images.quarantine import describe_skipped
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.engine.checkpoint.output_folder import OutputFolder
from ppcls.engine.core.observers import Observers
from ppcls.engine.core.parallel import seed_batch
from ppcls.engine.core.settings import EngineSettings
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step, train_step
from ppcls.engine.evaluation.evaluate import EvalResult, Evaluator
from ppcls.engine.evaluation.gap import GapMonitor
from ppcls.engine.health.non_finite import NonFiniteMonitor
from ppcls.engine.health.pacer import Pacer, images_per_update
from ppcls.engine.health.requests import SaveStopRequests
from ppcls.engine.health.time_limit import TimeLimit
from ppcls.engine.meter import Meter
from ppcls.errors import SignalExit, UserError, counted
from ppcls.files.urls import local_path
from ppcls.report.record import EvalRecord, Reporter, StepPosition
from ppcls.runtime.signals import handle_signals
from ppcls.weights.store import BEST, LATEST

if TYPE_CHECKING:  # only for annotations
    from ppcls.engine.checkpoint.checkpoints import Checkpoints

EpochTrainer = Callable[["Run", SaveStopRequests, NonFiniteMonitor], None]


@dataclass(frozen=True)
class Run:
    """A training run: its state and everything that the loop uses. Only ``state`` changes during the run.

    Attributes:
        state: State of the run, new or resumed.
        settings: Length, evaluation, checkpoints and execution of the run.
        checkpoints: Checkpoints of the run.
        evaluator: Evaluator of the model; None without evaluation.
        reporter: Reporter to which records and messages are sent.
        observers: Observers of the run, with the user's hooks.
        step: Function that trains on one batch.
        resumed: Checkpoint that the run resumed from; None for a new run.
        folder_classes: Class names in order of label, from the class folders; empty without class folders.
        notes: Lines for the log about the setup.
        memory_report: Function that returns a line about DALI's GPU memory; None if DALI uses none.
        output: Output folder, on rank 0; None on other ranks, and if the run writes no files.
        statistics: Loader of the images with which BatchNorm's statistics are estimated before evaluations;
            None to use the running statistics.
        gap: Monitor that compares results of training and evaluation.
        epoch_trainer: Function that trains an epoch; None for `train_epoch`.
        pretrained: Whether a new run starts from pretrained weights.
        limit: Time that the run may use.
    """

    state: TrainState
    settings: EngineSettings
    checkpoints: Checkpoints
    evaluator: Evaluator | None = None
    reporter: Reporter = field(default_factory=Reporter)
    observers: Observers = field(default_factory=Observers)
    step: Step = train_step
    resumed: Path | None = None
    folder_classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    memory_report: Callable[[], str] | None = None
    output: OutputFolder | None = None
    statistics: Loader | None = None
    gap: GapMonitor = field(default_factory=GapMonitor)
    epoch_trainer: EpochTrainer | None = None
    pretrained: bool = False
    limit: TimeLimit = field(default_factory=TimeLimit)

    @property
    def from_scratch(self) -> bool:
        """Whether a new run starts with random weights."""
        return self.resumed is None and not self.pretrained

    @property
    def loaders(self) -> dict[str, Loader]:
        """The loaders of training and evaluation, keyed by the name of the data set."""
        return all_loaders(self.state, self.evaluator)

    @property
    def indexes(self) -> Mapping[str, Index]:
        """The indexes of all data sets, keyed by the path of the data set in the config."""
        return all_indexes(self.loaders)

    def log(self, text: str) -> None:
        """Reports a line of text."""
        self.reporter.message(text, self.state.update)

    def save(self, names: Sequence[str], score: float | None = None, *, in_background: bool = False) -> None:
        """Saves a checkpoint under ``names``, then notifies the observers. All ranks must call it.

        Observers must see the complete checkpoint, so it is not written in the background if there are any.

        Args:
            names: See ``roles`` of `Checkpoints.save`.
            score: See `Checkpoints.save`.
            in_background: See `Checkpoints.save`.
        """
        in_background = in_background and not self.observers.see_checkpoints
        self.checkpoints.save(self.state, names, score, in_background=in_background)
        self.observers.on_checkpoint(self, tuple(names))

    def check_output(self) -> None:
        """Checks that the output folder is still at its path; if not, saves the state on this rank.

        Raises:
            UserError: The folder was renamed or removed.
        """
        if self.output is not None and self.output.is_moved():
            self.checkpoints.save(self.state, [LATEST], alone=True)
            raise UserError(self.output.describe())

    def release(self) -> None:
        """Releases threads and memory of all loaders, and the output folder."""
        extra = [self.statistics] if self.statistics is not None else []
        for loader in [*self.loaders.values(), *extra]:
            loader.release()
        if self.output is not None:
            self.output.close()


def all_loaders(state: TrainState, evaluator: Evaluator | None) -> dict[str, Loader]:
    """Returns the loaders of training and evaluation, keyed by the name of the data set."""
    return {"Train": state.loader, **(evaluator.loaders if evaluator is not None else {})}


def all_indexes(loaders: Mapping[str, Loader]) -> dict[str, Index]:
    """Returns the indexes of loaders, keyed by the path of the data set in the config."""
    return {f"DataLoader.{name}": loader.index for name, loader in loaders.items()}


def fit(run: Run) -> None:
    """Trains a run until its last epoch, until it stops early, or until its time is over.

    Raises:
        UserError: See `train_epoch`; or the output folder was renamed or removed. The state is saved.
        SignalExit: A signal stopped the run; the state is saved.
    """
    state = run.state
    settings = run.settings
    output_dir = local_path(settings.output_dir)
    last_good = run.checkpoints.newest_intact
    monitor = NonFiniteMonitor(state, settings.max_bad_steps, output_dir, last_good)
    world = state.runtime.world_size
    embedded = state.runtime.embedded
    with handle_signals(world, embedded) as signals, run.checkpoints.finished():
        requests = SaveStopRequests(settings, state.runtime, signals, run.output)
        limit = run.limit
        while state.progress.closing or not (limit.reached or _is_finished(state, settings)):
            limit.begin()
            if not state.progress.closing:
                (run.epoch_trainer or train_epoch)(run, requests, monitor)
                state.share_statistics()  # ranks have seen different images, but evaluate and save one model
                state.progress.closing = True  # a run that stops during the evaluation resumes with it
            if state.epoch < settings.epochs:
                evaluates = run.evaluator is not None and settings.evaluates_after(state.epoch)
                limit.end_epoch(images_per_update(state), world, evaluates=evaluates)
            _close_epoch(run, requests, last=limit.reached)
            requests.saved()
            requests.raise_if_stopped()
    run.check_output()
    if limit.reached:
        run.log(
            f"ended after {counted(state.update, 'update')}, in epoch {state.epoch} of {settings.epochs}: "
            f"another update would not end within {limit.seconds:g} s (Global.time_limit)"
        )
    elif state.epoch < settings.epochs:
        failed = state.progress.not_better
        count = "evaluation" if failed == 1 else counted(failed, "evaluation")
        run.log(
            f"stopped early after epoch {state.epoch} of {settings.epochs}: {state.judge} did "
            f"not improve in the last {count} (Global.early_stopping)"
        )


def train_epoch(run: Run, requests: SaveStopRequests, monitor: NonFiniteMonitor) -> None:
    """Trains on the remaining batches of the current epoch.

    Args:
        requests: Requests to save or stop between two updates.
        monitor: Monitor that checks losses and gradients.

    Raises:
        UserError: A loss or gradient fails `NonFiniteMonitor.check`, a checkpoint can't be written, or the
            output folder was renamed or removed.
        SignalExit: A signal stopped the run; the state is saved.
    """
    state = run.state
    settings = run.settings
    state.network.train()
    epoch = state.epoch + 1
    done = state.updates_of_epoch
    updates_per_epoch = state.updates_per_epoch
    meter = Meter(state, settings.epochs, monitor)
    pacer = Pacer(state, settings, run.limit)
    for batch in _batches(run, meter):
        # The random numbers of a batch depend only on its position, so a resumed run draws the same ones.
        seed_batch(state.loader.order.seed, state.runtime.rank, state.epoch, state.step)
        run.observers.on_batch(state, batch)
        meter.add(run.step(state, batch, run.observers), batch)
        if not batch.update:
            continue
        done += 1
        images = batch.valid * settings.update_freq * state.runtime.world_size
        left = run.limit.left
        run.reporter.advance(StepPosition(epoch, settings.epochs, done, updates_per_epoch, images, left))
        recorded = done % settings.print_batch_step == 0 or done == updates_per_epoch
        if recorded:
            _record(run, meter, monitor, epoch, done)
        run.observers.on_update(run)
        requests.exchange(pacer.after_update())
        if (line := pacer.apply(requests.pace)) is not None:
            run.log(line)
        if run.limit.reached and not recorded:
            _record(run, meter, monitor, epoch, done)
        # After the last update of an epoch, `_close_epoch` saves, and the checkpoint then has the evaluation.
        if requests.must_save(state.update) and done < updates_per_epoch and not run.limit.reached:
            meter.check(epoch)
            state.share_statistics()
            run.save([LATEST], in_background=True)
            requests.saved()
            requests.raise_if_stopped()
    if state.step:  # the time is over; a resumed run starts with the next epoch
        state.loader.load_state_dict({**state.loader.state_dict(), "epoch": epoch, "step": 0})


def _record(run: Run, meter: Meter, monitor: NonFiniteMonitor, epoch: int, done: int) -> None:
    """Records loss and metrics of the updates since the last record."""
    run.state.runtime.progress.report("gathering the loss and metrics of all processes")
    record = meter.record(epoch, done, run.limit.left)
    run.gap.add(record)
    run.reporter.record(record)
    if note := monitor.note():
        run.log(note)


def _is_finished(state: TrainState, settings: EngineSettings) -> bool:
    """Returns whether no epoch is left to train. Equal on all ranks, because their metrics are equal."""
    limit = settings.early_stopping
    return state.epoch >= settings.epochs or (limit is not None and state.progress.not_better >= limit)


def _batches(run: Run, meter: Meter) -> Iterator[Batch]:
    """Yields the remaining batches of the epoch, measures each wait for data, and notifies the observers."""
    state = run.state
    observers = run.observers
    batches = iter(state.loader)
    epoch = state.epoch + 1
    number = state.step
    while True:
        number = min(number + 1, len(state.loader))
        state.runtime.progress.set_position(epoch, number, state.update)
        observers.begin_batch()
        with meter.waiting(), observers("data wait"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
        observers.end_batch(run, batch.update)
        if run.limit.reached:
            return


def _close_epoch(run: Run, requests: SaveStopRequests, *, last: bool) -> None:
    """Evaluates the model if an evaluation is due, and saves a checkpoint.

    After a stop signal it only saves; the resumed run then evaluates first.

    Args:
        last: Whether the run ends after this epoch, although it is not the last one of the config.
    """
    state = run.state
    settings = run.settings
    checkpoints = run.checkpoints
    epoch = state.epoch
    last = last or state.epoch == settings.epochs
    roles = [LATEST]
    score = None
    try:
        requests.raise_if_stopped()
        if run.evaluator is not None and (last or settings.evaluates_after(epoch)):
            score, best = _evaluate(run, run.evaluator, requests)
            if best:
                roles.append(BEST)
    except SignalExit:
        run.save([LATEST])
        raise
    except (UserError, MemoryError):
        # For example, an image is bad or a batch is too large. The trained epoch is saved. Other ranks may
        # still be waiting for this rank in the evaluation, so this rank must not wait for them.
        checkpoints.save(state, [LATEST], alone=True)
        raise
    if skipped := describe_skipped(loader.quarantine for loader in run.loaders.values()):
        run.log(f"so far {skipped}")
    if epoch % settings.save_interval == 0 or last:
        roles.append(f"epoch_{epoch}")
    state.progress.closing = False
    run.save(roles, score, in_background=True)


def _evaluate(run: Run, evaluator: Evaluator, requests: SaveStopRequests) -> tuple[float | None, bool]:
    """Evaluates the averaged weights, or the weights without a moving average, and reports the result.

    Returns:
        The score, or None if score or loss is non-finite; and whether the score is the best so far.
    """
    state = run.state
    progress = run.state.progress
    done = count(1)

    start = run.limit.age

    def after_batch() -> None:
        run.reporter.advance_evaluation(next(done), evaluator.batches)
        requests.check()

    with state.ema.applied() if state.ema is not None else nullcontext():
        if run.statistics is not None:
            state.estimate_statistics(run.statistics)
        result = evaluator(state.model, after_batch)
    run.limit.end_evaluation(run.limit.age - start)
    # JSON has no NaN, so a checkpoint can't store non-finite values.
    progress.metrics = {name: value for name, value in result.metrics.items() if math.isfinite(value)}
    score = result.score
    finite = math.isfinite(result.loss + score)
    best = finite and (progress.best is None or score > progress.best)
    if best:
        progress.best = score
    progress.not_better = 0 if best else progress.not_better + 1
    note = state.plateau.see(result.loss, score, state.epoch) if state.plateau is not None else None
    record = EvalRecord(
        epoch=state.epoch,
        update=state.update,
        loss=result.loss,
        metrics=result.metrics,
        images=result.images,
        seconds=result.seconds,
        best=best,
        outcomes=result.outcomes,
    )
    run.reporter.record(record)
    run.observers.on_evaluation(run, record)
    if result.recomputed:
        run.log(
            f"epoch {state.epoch}: {counted(result.recomputed, 'batch')} of the evaluation overflowed in "
            "float16 and were evaluated again in float32"
        )
    initial_share = 0.0 if state.ema is None else state.ema.initial_share(state.update)
    if gap := run.gap.describe(record, state.model, initial_share):
        run.log(gap)
    if not finite:
        run.log(_describe_non_finite(result, state.epoch))
    if note is not None:
        run.log(note)
    return score if finite else None, best


def _describe_non_finite(result: EvalResult, epoch: int) -> str:
    name, value = next(iter(result.metrics.items()))
    if math.isfinite(value):
        name = "loss"
        value = result.loss
    return f"epoch {epoch}: the evaluation's {name} is {value}, so this model can't become best_model"

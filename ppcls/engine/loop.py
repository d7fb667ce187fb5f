"""The training loop, top to bottom: train an epoch, evaluate, save."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from ppcls.config.sections.run import Global
from ppcls.data.bad_images.quarantine import describe_skipped
from ppcls.data.loaders.batch import Batch
from ppcls.engine.checkpoint.checkpoints import BEST, LATEST, Checkpoints
from ppcls.engine.core.hooks import NO_HOOKS, StepHooks
from ppcls.engine.core.parallel import seed_batch
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step, train_step
from ppcls.engine.evaluation.evaluate import Evaluator, Result
from ppcls.engine.health.bad_steps import BadSteps
from ppcls.engine.health.control import Control
from ppcls.engine.meter import Meter
from ppcls.errors import SignalExit, UserError
from ppcls.report.record import EvalRecord, Reporter
from ppcls.runtime.signals import handle_signals


def fit(
    state: TrainState,
    settings: Global,
    evaluator: Evaluator | None,
    checkpoints: Checkpoints,
    reporter: Reporter,
    phases: StepHooks = NO_HOOKS,
    step: Step = train_step,
) -> None:
    """Trains from the state's position to the end of the last epoch.

    Args:
        state: Changed in place.
        settings: How long, and how often to log, evaluate and save.
        evaluator: Evaluates the model; None for no evaluation.
        checkpoints: Where to save.
        reporter: Who is told.
        phases: Measures the steps, where somebody does.
        step: Takes each batch.
    """
    limit, output_dir = settings.max_bad_steps, Path(settings.output_dir)
    bad_steps = BadSteps(state, limit, output_dir, checkpoints.newest_intact)
    with handle_signals(state.runtime.world_size, state.runtime.embedded) as signals:
        control = Control(settings, state.runtime, signals)
        while state.closing or not _over(state, settings):
            if not state.closing:
                train_epoch(state, settings, checkpoints, reporter, control, bad_steps, phases, step)
                state.share_statistics()
                state.closing = True
            _close_epoch(state, settings, evaluator, checkpoints, reporter, control)
            control.saved()
            control.leave()
    if state.epoch < settings.epochs:
        seen = "evaluation" if state.not_better == 1 else f"{state.not_better} evaluations"
        reporter.message(
            f"ends after epoch {state.epoch} of {settings.epochs}: no better {state.judge or 'metric'} in "
            f"the last {seen} (Global.early_stopping)"
        )


def _over(state: TrainState, settings: Global) -> bool:
    """Whether there is no epoch to come; all ranks say the same, for they know the same metrics."""
    limit = settings.early_stopping
    return state.epoch >= settings.epochs or (limit is not None and state.not_better >= limit)


def _close_epoch(
    state: TrainState,
    settings: Global,
    evaluator: Evaluator | None,
    checkpoints: Checkpoints,
    reporter: Reporter,
    control: Control,
) -> None:
    """Evaluates where it is due, and saves; a signal puts the evaluation off until the run goes on."""
    done = state.epoch
    roles, score = [LATEST], None
    due = done % settings.eval_interval == 0 or done == settings.epochs
    try:
        control.leave()
        if evaluator is not None and due:
            score, best = _evaluate(state, evaluator, reporter, control)
            if best:
                roles.append(BEST)
            evaluator.release()
    except SignalExit:
        checkpoints.save(state, [LATEST])
        raise
    except (UserError, MemoryError):
        # Such as a bad image or a batch too large: the epoch's training is not lost for it. Other ranks
        # may be well and wait for this one in the evaluation, so nothing here may wait for them.
        checkpoints.save_alone(state, [LATEST])
        raise
    loaders = [state.loader, *(evaluator.loaders.values() if evaluator is not None else ())]
    if skipped := describe_skipped(each.quarantine for each in loaders):
        reporter.message(f"so far {skipped}", state.update)
    if done % settings.save_interval == 0 or done == settings.epochs:
        roles.append(f"epoch_{done}")
    state.closing = False
    checkpoints.save(state, roles, score)


def train_epoch(
    state: TrainState,
    settings: Global,
    checkpoints: Checkpoints,
    reporter: Reporter,
    control: Control,
    bad_steps: BadSteps,
    phases: StepHooks = NO_HOOKS,
    step: Step = train_step,
) -> None:
    """Trains what is left of the running epoch."""
    state.network.train()
    epoch = state.epoch + 1
    done, updates_per_epoch = state.updates_of_epoch, state.updates_per_epoch
    meter = Meter(state, settings.epochs, updates_per_epoch, bad_steps)
    for batch in _batches(state, meter, phases):
        seed_batch(state.loader.order.seed, state.runtime.rank, state.epoch, state.step)
        meter.add(step(state, batch, phases), batch)
        if not batch.update:
            continue
        done += 1
        if done % settings.print_batch_step == 0 or done == updates_per_epoch:
            state.runtime.progress.report("loss and metrics of all processes, for the log")
            reporter.record(meter.record(epoch, done))
            if note := bad_steps.note():
                reporter.message(note, state.update)
        control.look()
        if control.must_save(state.update) and done < updates_per_epoch:
            meter.check(epoch)
            state.share_statistics()
            checkpoints.save(state, [LATEST])
            control.saved()
            control.leave()


def _batches(state: TrainState, meter: Meter, phases: StepHooks) -> Iterator[Batch]:
    """Yields what is left of the epoch; counts the wait for each batch."""
    batches, epoch, number = iter(state.loader), state.epoch + 1, state.step
    while True:
        number = min(number + 1, len(state.loader))
        state.runtime.progress.set_position(epoch, number, state.update)
        phases.begin_batch()
        with meter.waiting(), phases("data wait"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
        phases.end_batch(batch.update)


def _evaluate(
    state: TrainState, evaluator: Evaluator, reporter: Reporter, control: Control
) -> tuple[float | None, bool]:
    """Evaluates the weights, or their average where there is one.

    Returns:
        The score, None where it or the loss is not finite; and whether it is the best so far.
    """
    with state.ema.applied() if state.ema is not None else nullcontext():
        result = evaluator(state.model, control.check)
    score = result.score
    finite = math.isfinite(result.loss + score)
    best = finite and (state.best is None or score > state.best)
    if best:
        state.best = score
    state.not_better = 0 if best else state.not_better + 1
    note = state.plateau.see(result.loss, score, state.epoch) if state.plateau is not None else None
    reporter.record(
        EvalRecord(
            epoch=state.epoch,
            update=state.update,
            loss=result.loss,
            metrics=result.metrics,
            images=result.images,
            seconds=result.seconds,
            best=best,
            outcomes=result.outcomes,
        )
    )
    if not finite:
        reporter.message(_without_number(result, state.epoch), state.update)
    if note is not None:
        reporter.message(note, state.update)
    return score if finite else None, best


def _without_number(result: Result, epoch: int) -> str:
    """Says why an evaluation's model is no candidate for the best."""
    name, value = next(iter(result.metrics.items()))
    if math.isfinite(value):
        name, value = "loss", result.loss
    return f"epoch {epoch}: {name} of the evaluation is {value}: this model can't become best_model"

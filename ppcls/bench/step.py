"""How fast training steps are on this machine: ours on one batch and fed by the loader, against a bare loop.

The bare loop is Paddle's own API as its documentation shows it, on one batch that stays on the device: no
loader, no metrics, no log. All take turns, as in `ppcls.bench.timing`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import paddle
from paddle.nn import functional as F

from ppcls.bench.timing import Epoch, Speed, compare
from ppcls.config.schema import Config
from ppcls.data.batch import Batch
from ppcls.engine.bad_steps import BadSteps
from ppcls.engine.execution import choose_step
from ppcls.engine.meter import Meter
from ppcls.engine.phases import UNTIMED
from ppcls.engine.state import TrainState, build_network, build_state
from ppcls.engine.step import Step
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import factors, freeze
from ppcls.runtime import Runtime


def benchmark_steps(config: Config, runtime: Runtime, rounds: int, *, plain: bool) -> tuple[list[Speed], str]:
    """Measures a config's training steps.

    Args:
        config: Of a training run; its schedule and losses do not matter here.
        runtime: One process, or one of several, each with the same batch size; speeds are those of one.
        rounds: Counted ones.
        plain: Whether to measure the bare loop, too; it needs a second model's memory.

    Returns:
        The speeds, and how our steps were executed.

    Raises:
        UserError: The run can't be built.
    """
    state = build_state(config, runtime, lambda _: None)
    state.schedule = lambda _update: 0.0  # so that the weights don't learn one batch by heart
    state.connect(config.Global)
    step, how = choose_step(config, state)
    state.network.train()
    steps = len(state.loader)
    first = next(iter(state.loader))
    batch = replace(first, image=first.image.clone(), label=first.label.clone())
    contenders = {
        **({"bare Paddle loop": bare_loop(config, batch, steps)} if plain else {}),
        "ours, one batch": _repeated(state, step, batch, steps),
        "ours, fed": _fed(config, state, step),
    }
    try:
        return compare(contenders, rounds, time.perf_counter, runtime.synchronize), how
    finally:
        state.loader.release()


def bare_loop(config: Config, batch: Batch, steps: int) -> Epoch:
    """Returns an epoch of the loop that Paddle's documentation shows, in the config's precision.

    Args:
        config: Says model, optimizer and precision.
        batch: Trained on over and over; labels [B] int64.
        steps: Batches.
    """
    model, amp = build_network(config), config.AMP
    half = amp is not None and amp.use_amp
    level, dtype = (amp.level, amp.dtype) if amp is not None else ("O1", "float16")
    freeze(config.Optimizer, model)
    own = factors(config.Optimizer, model)
    optimizer = build_optimizer(config.Optimizer, model, half and level == "O2", own)
    if half and level == "O2":
        model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype=dtype)
    scaler = paddle.amp.GradScaler(enable=half and dtype == "float16", init_loss_scaling=2.0**15)
    if half:
        scaler._scale = scaler._scale.reshape([])  # numpy 2.4 fails to print one of shape [1]
    model.train()
    optimizer.set_lr(0.0)
    image = batch.image if half else batch.image.astype("float32")

    def epoch() -> Iterator[int]:
        for _ in range(steps):
            with paddle.amp.auto_cast(level=level, dtype=dtype) if half else nullcontext():
                loss = F.cross_entropy(model(image).astype("float32"), batch.label)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad(set_to_zero=False)
            yield batch.valid

    return epoch


def _repeated(state: TrainState, step: Step, batch: Batch, steps: int) -> Epoch:
    accumulate = state.loader.order.accumulate
    full = replace(batch, valid=state.loader.order.batch_size, weight=1 / accumulate)

    def epoch() -> Iterator[int]:
        for number in range(1, steps // accumulate * accumulate + 1):
            step(state, replace(full, update=number % accumulate == 0), UNTIMED)
            yield batch.valid

    return epoch


def _fed(config: Config, state: TrainState, step: Step) -> Epoch:
    """Returns an epoch of the training loop: loader, step, metrics and what a log line reads."""
    settings = config.Global
    bad_steps = BadSteps(state, settings.max_bad_steps, Path(settings.output_dir))

    def epoch() -> Iterator[int]:
        number, done = state.epoch + 1, 0
        meter = Meter(state, settings.epochs, state.updates_per_epoch, bad_steps)
        for batch in state.loader:
            meter.add(step(state, batch, UNTIMED), batch)
            done += batch.update
            if batch.update and done % settings.print_batch_step == 0:
                meter.record(number, done)
            yield batch.valid

    return epoch

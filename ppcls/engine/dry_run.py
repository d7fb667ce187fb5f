"""``--dry-run``: builds a run as training would, takes a few steps, and tells what the whole would take.

Loader and step are measured together and each alone: a loader that works ahead fills its stock while a
step alone runs, so it is timed from where that stock is used up, and the fed steps come after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import paddle

from ppcls.config.schema import Config
from ppcls.config.sections.loader import Split
from ppcls.config.sections.transform import check_chain
from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.data.bad_images.quarantine import describe_skipped
from ppcls.data.build import describe_feed
from ppcls.data.images.header import DecodeError, read_header
from ppcls.data.index.read import Index
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.loaders.dali.settings import resolve_dali_settings
from ppcls.data.transforms.specs import DecodeImage
from ppcls.engine.advice import Feeding, advise
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.engine.cuda_graph.graphed_step import EAGER_UPDATES
from ppcls.engine.evaluation.evaluate import Evaluator, evaluate
from ppcls.engine.profiling.data_wait import data_wait
from ppcls.engine.profiling.peak import memory_explained, peak_memory
from ppcls.engine.setup import Prepared, prepare
from ppcls.errors import UserError
from ppcls.report.console import clock
from ppcls.runtime.start import Runtime


@dataclass(frozen=True)
class Measured:
    """A dry run's figures. A step is an optimizer update; images are those of all ranks, times the slowest's.

    Attributes:
        fed: Seconds of a step, fed by the loader.
        waited: Seconds thereof spent waiting for data.
        fed_images: Images of such a step, in the mean.
        alone: Seconds of a step on one batch again and again.
        alone_images: Images of such a step.
        loader: Images a second of the loader alone.
        evaluation: Seconds of a whole evaluation; None where the run does not evaluate.
        steps: Left to train.
        full_steps: What they come to, for the last one of an epoch may have fewer batches than others.
        evaluations: Left to do.
    """

    fed: float
    waited: float
    fed_images: float
    alone: float
    alone_images: float
    loader: float
    evaluation: float | None
    steps: int
    full_steps: float
    evaluations: int

    @property
    def seconds(self) -> float:
        """Estimates the rest of the run, checkpoints and start not counted."""
        # Batches in stock may hide how slow the loader is from the few steps that were fed.
        step = max(self.fed, self.fed_images / self.loader)
        return self.full_steps * step + self.evaluations * (self.evaluation or 0.0)


def describe(measured: Measured) -> list[str]:
    """Returns the figures as lines."""
    m = measured
    whole = f"{clock(m.seconds)} (h:mm:ss) for {m.steps} steps"
    if m.evaluation is not None:
        whole += f" and {m.evaluations} evaluations of {_seconds(m.evaluation)}"
    return [
        f"speed         {_rate(m.fed_images / m.fed)}, fed by the loader: "
        f"{_seconds(m.fed)} a step of {m.fed_images:g} images",
        f"data wait     {m.waited / m.fed:.0%} of a step",
        f"step alone    {_rate(m.alone_images / m.alone)}, on one batch again and again",
        f"loader alone  {_rate(m.loader)}",
        f"whole run     {whole}; checkpoints not counted",
    ]


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:.{0 if images_per_second >= 100 else 1}f} img/s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


STEPS = 3
# Steps that are not counted: the first ones build, tune and record.
WARM_UP, WARM_UP_RECORDED = 2, EAGER_UPDATES + 2
_REFILL = 1  # steps after the loader was emptied
_LOADER_SECONDS, _LOADER_BATCHES = 1.0, 3  # the least that the loader alone is timed for
_PICTURES = 32  # looked at for their size


def dry_run(config: Config, runtime: Runtime) -> str:
    """Measures a run and writes none of its files.

    Args:
        config: The whole config.
        runtime: Rank and device.

    Returns:
        Lines for people; the same on all ranks but for their own memory.

    Raises:
        UserError: Whatever training would end with: a bad image, too little memory, a wrong config.
    """
    with memory_explained(config, runtime), suggest_skipping(config.DataLoader.splits):
        run = prepare(config, runtime, Path(config.Global.output_dir), writing=False)
        try:
            measured, batches = _measure(config, run)
            lines = [
                *run.notes,
                f"dry run: {STEPS} steps after {_warm_up(run)} to warm up, {STEPS} more on one batch, "
                f"{batches} batches of the loader alone"
                + ("" if run.evaluator is None else ", and two batches of an evaluation"),
                *_short_epochs(run.state),
                *describe(measured),
                f"memory        at most {peak_memory(runtime).describe()}",
                *([run.measure()] if run.measure is not None else []),
                f"change first  {advise(_feeding(config, run.state, measured))}",
                _left_behind(run),
                *_refused(run),
            ]
        finally:
            run.state.loader.release()
            if run.evaluator is not None:
                run.evaluator.release()
    return "\n".join(lines) + "\n"


def _measure(config: Config, run: Prepared) -> tuple[Measured, int]:
    """Returns the figures, and how many batches the loader alone was timed for."""
    state, split, settings = run.state, config.DataLoader.Train, config.Global
    assert split is not None  # by prepare
    done, order = state.epoch, state.loader.order
    left = settings.epochs - done
    steps = left * state.updates_per_epoch - state.updates_of_epoch
    batches_left = left * len(state.loader) - state.step
    due = [
        e % settings.eval_interval == 0 or e == settings.epochs for e in range(done + 1, settings.epochs + 1)
    ]
    state.network.train()
    batches = _endless(state.loader)
    last = _feed(run, batches, _warm_up(run))
    alone = _repeat(run, last, STEPS)
    alone_images = len(last.image) * order.world * order.accumulate
    del last  # its memory is the next one's
    feed = describe_feed(split, state.runtime, config.Arch, use_dali=settings.use_dali)
    loader, counted = _drain(state.runtime, batches, feed.prefetched)
    _feed(run, batches, _REFILL)
    images, fed, waited = _time_fed(run, batches)
    rates = {"fed": fed, "waited": waited, "alone": alone}
    slowest = dict(zip(rates, _over_ranks(state.runtime, "max", list(rates.values())), strict=True))
    images, loader = _over_ranks(state.runtime, "sum", [images, loader])
    evaluation = None
    if run.evaluator is not None:
        evaluation = _time_evaluation(state, run.evaluator, loader)
        (evaluation,) = _over_ranks(state.runtime, "max", [evaluation])
    measured = Measured(
        **{name: seconds / STEPS for name, seconds in slowest.items()},
        fed_images=images / STEPS,
        alone_images=alone_images,
        loader=loader,
        evaluation=evaluation,
        steps=max(0, steps),
        full_steps=max(0, batches_left) / order.accumulate,
        evaluations=sum(due),
    )
    return measured, counted


def _endless(loader: Loader) -> Iterator[Batch]:
    """Yields batches, epoch after epoch."""
    while True:
        yield from loader


def _updates(state: TrainState, steps: int) -> Iterator[bool]:
    """Yields for each batch whether a step ends with it: alike on all ranks, wherever their loaders are."""
    accumulate = state.loader.order.accumulate
    for number in range(1, steps * accumulate + 1):
        yield number % accumulate == 0


def _warm_up(run: Prepared) -> int:
    return WARM_UP if run.step is train_step else WARM_UP_RECORDED


def _take(run: Prepared, batch: Batch, *, update: bool) -> None:
    """Takes a batch as if it were a full one, for ranks may be at other places than each other here."""
    order = run.state.loader.order
    full = replace(batch, update=update, valid=len(batch.image), weight=1 / order.accumulate)
    run.step(run.state, full, NO_HOOKS)


def _feed(run: Prepared, batches: Iterator[Batch], steps: int) -> Batch:
    """Takes steps, and returns the last batch."""
    batch: Batch | None = None
    for update in _updates(run.state, steps):
        batch = next(batches)
        _take(run, batch, update=update)
    run.state.runtime.synchronize()
    assert batch is not None
    return batch


def _time_fed(run: Prepared, batches: Iterator[Batch]) -> tuple[float, float, float]:
    """Returns images, seconds, and seconds of waiting for data, of this rank's fed steps."""
    images, wait, began = 0, data_wait(run.state.runtime), time.perf_counter()
    for update in _updates(run.state, STEPS):
        with wait.waiting():
            batch = next(batches)
        _take(run, batch, update=update)
        images += batch.valid
    run.state.runtime.synchronize()
    return images, time.perf_counter() - began, wait.seconds


def _repeat(run: Prepared, batch: Batch, steps: int) -> float:
    """Returns the seconds of steps on one batch."""
    began = time.perf_counter()
    for update in _updates(run.state, steps):
        _take(run, batch, update=update)
    run.state.runtime.synchronize()
    return time.perf_counter() - began


def _drain(runtime: Runtime, batches: Iterator[Batch], stock: int) -> tuple[float, int]:
    """Returns this rank's images a second of the loader alone, its stock not counted, and its batches."""
    for _ in islice(batches, stock):
        pass
    runtime.synchronize()
    images, counted, began = 0, 0, time.perf_counter()
    while counted < _LOADER_BATCHES or time.perf_counter() - began < _LOADER_SECONDS:
        images += next(batches).valid
        counted += 1
    runtime.synchronize()
    return images / (time.perf_counter() - began), counted


def _time_evaluation(state: TrainState, evaluator: Evaluator, loader: float) -> float:
    """Estimates a whole evaluation's seconds: its start with one batch, and one more for each of the rest.

    The loader may have made that one ahead; so none is taken to be faster than the training loader's.
    """
    loaders = evaluator.loaders.values()
    rest, batches = sum(map(len, loaders)) - 1, chain.from_iterable(loaders)
    with state.ema.applied() if state.ema is not None else nullcontext():
        start = _evaluate(state, evaluator, batches)
        one = _evaluate(state, evaluator, batches) if rest else 0.0
    return start + rest * max(one, max(each.order.global_batch for each in loaders) / loader)


def _evaluate(state: TrainState, evaluator: Evaluator, batches: Iterator[Batch]) -> float:
    """Returns the seconds of evaluating one batch."""
    began = time.perf_counter()
    evaluate(
        state.model,
        islice(batches, 1),
        evaluator.criterion,
        evaluator.metrics,
        evaluator.precision,
        evaluator.world,
    )
    return time.perf_counter() - began


def _over_ranks(runtime: Runtime, how: str, values: list[float]) -> list[float]:
    """Returns the sum, or the largest, of each value over all ranks."""
    if runtime.world_size == 1:
        return values
    each = paddle.to_tensor(values, dtype="float64")
    reduce = paddle.distributed.ReduceOp
    paddle.distributed.all_reduce(each, reduce.SUM if how == "sum" else reduce.MAX)
    found: list[float] = np.asarray(each.numpy()).tolist()
    return found


def _feeding(config: Config, state: TrainState, measured: Measured) -> Feeding:
    """Gathers what the advice is made from."""
    split = config.DataLoader.Train
    assert split is not None  # by prepare
    runtime = state.runtime
    feed = describe_feed(split, runtime, config.Arch, use_dali=config.Global.use_dali)
    height, width = check_chain(split.dataset.transform_ops).size or (0, 0)
    return Feeding(
        loader=measured.loader,
        step=measured.alone_images / measured.alone,
        waiting=measured.waited / measured.fed,
        by_dali=feed.uses_dali,
        dali_can=feed.dali_supported,
        on_gpu=runtime.device == "gpu",
        cores=runtime.cores,
        workers=split.loader.num_workers,
        threads=resolve_dali_settings(split.loader.dali, runtime).threads,
        dali=split.loader.dali,
        picture=_picture(split, state.loader.index),
        kept=height * width,
    )


def _picture(split: Split, index: Index) -> float | None:
    """Returns the mean pixels of some images as they are stored; None for arrays, or if none can be read."""
    if not isinstance(split.dataset.transform_ops[0], DecodeImage):
        return None
    pixels = []
    for position in np.linspace(0, len(index) - 1, min(_PICTURES, len(index)), dtype=np.int64).tolist():
        try:
            header = read_header(index.read(position))
        except DecodeError:  # skipped, or not come to
            continue
        pixels.append(header.height * header.width)
    return float(np.mean(pixels)) if pixels else None


def _short_epochs(state: TrainState) -> list[str]:
    steps = state.updates_per_epoch
    return [f"an epoch has {steps} steps: it was gone over more than once"] if steps < STEPS else []


def _refused(run: Prepared) -> list[str]:
    """Says why training would not write where this run's config has it."""
    try:
        run.checkpoints.check_unused(run.resumed)
    except UserError as error:
        return [f"training itself would end here: {error}"]
    return []


def _left_behind(run: Prepared) -> str:
    """Says what the dry run wrote: bad images' list, where the run goes on without them."""
    loaders = [run.state.loader, *(run.evaluator.loaders.values() if run.evaluator is not None else ())]
    skipped = describe_skipped(each.quarantine for each in loaders)
    return "nothing was written" if skipped is None else f"{skipped}; nothing else was written"

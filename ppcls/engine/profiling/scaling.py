"""Measures how well a run scales over its ranks, and logs one line about it.

Decisions:
- A rank can't know its speed alone, because no other run measures it. So each rank times what it computes by
  itself in a few updates: forward pass, backward pass and optimizer, without the exchange of gradients.
  Relative to the duration of ordinary updates, this is the scaling. What slows down the computation itself,
  such as decoders that use the same cores or the same GPU, is therefore not a loss of scaling.
- In these updates, ranks exchange the gradients after the backward pass instead of during it, because the two
  could not be timed separately. The order of summation may then differ. So their positions depend only on the
  number of the update: a resumed run still repeats the numbers of a run without interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import paddle
from numpy.typing import NDArray
from typing_extensions import override

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import Phase, StepHooks
from ppcls.engine.core.observers import StepObserver
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step, train_step
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.profiling.data_wait import build_data_wait
from ppcls.runtime.collectives import all_gather

if TYPE_CHECKING:
    from ppcls.engine.loop import Run

_PERIOD = 1000  # updates from one series of samples to the next
_FIRST = 100  # number of updates before the first sample of a period
_SAMPLES = 10  # number of samples of a series
_LONG = 2 * _FIRST  # number of updates of a run from which the samples have these positions
_WARM_UP = 5  # smallest number of updates that build kernels, capture graphs and start the loader
_FEWEST = 3  # smallest number of ordinary updates
_GOOD = 0.95  # smallest scaling without advice
DATA = "waiting for data"
EXCHANGE = "exchange of gradients"
UNEQUAL = "slower ranks"
OTHER = "other work"


@dataclass(frozen=True)
class SampledUpdates:
    """The updates of a run that are samples: ``count`` updates from ``first`` on in each period.

    Attributes:
        first: Number of updates before the first sample of a period.
        count: Number of samples per period; 0 for a run that is too short.
        period: Number of updates of a period.
    """

    first: int = _FIRST
    count: int = _SAMPLES
    period: int = _PERIOD

    @property
    def warm_up(self) -> int:
        """Number of updates after the start that are not measured: half of those before the first sample.

        On two H200, the first 30 updates were up to 30 times as slow as the later ones, until the graphs were
        captured. With a warm-up of 5 updates, the line said 71 % where later updates reached 88 %.
        """
        return max(_WARM_UP, self.first // 2)

    def __contains__(self, update: int) -> bool:
        """Returns whether an update, counted from 0, is a sample."""
        return self.first <= update % self.period < self.first + self.count

    def ends_with(self, update: int) -> bool:
        """Returns whether an update is the last sample of its period."""
        return update % self.period == self.first + self.count - 1

    def precedes(self, update: int) -> bool:
        """Returns whether an update comes before the samples of its period."""
        return update % self.period < self.first


def choose_samples(updates: int) -> SampledUpdates:
    """Returns the samples of a run.

    Args:
        updates: Number of updates of the whole run. In a short run, samples are in its middle.
    """
    if updates >= _LONG:
        return SampledUpdates()
    first = updates // 2
    count = min(_SAMPLES, updates // 4) if first >= _WARM_UP + _FEWEST else 0
    return SampledUpdates(first, count, max(1, updates))


@dataclass(frozen=True)
class Scaling:
    """How the time of ordinary updates is spent.

    Attributes:
        ranks: Number of ranks.
        rate: Images per second of all ranks.
        share: Mean share of the time in which a rank computes, 0..1.
        losses: Shares of the rest by their causes. With ``share``, they add up to 1.
        slowest: Rank that computes slowest.
    """

    ranks: int
    rate: float
    share: float
    losses: Mapping[str, float]
    slowest: int

    @property
    def cause(self) -> str | None:
        """The cause of the largest loss; None if the ranks scale well."""
        return None if self.share >= _GOOD else max(self.losses, key=self.losses.__getitem__)

    def describe(self, hints: Mapping[str, str]) -> str:
        """Returns a line for the log.

        Args:
            hints: What to do against the losses, by cause.
        """
        losses = ", ".join(f"{share:.0%} {cause}" for cause, share in self.losses.items())
        line = (
            f"scaling: {self.ranks} ranks train {_rate(self.rate)} images/s, {self.share:.0%} of the "
            f"{_rate(self.rate / self.share)} that they would train without waiting; lost: {losses}"
        )
        if self.cause is None:
            return line
        slowest = f" (rank {self.slowest})" if self.cause == UNEQUAL else ""
        return f"{line}; {self.cause}{slowest} limits the speed: {hints[self.cause]}"


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:,.{0 if images_per_second >= 100 else 1}f}"


def measured_scaling(
    seconds: NDArray[np.float64],
    waiting: NDArray[np.float64],
    images: float,
    own: NDArray[np.float64],
    exchange: NDArray[np.float64],
) -> Scaling:
    """Returns the scaling of a run.

    A rank that waits for data delays all others. They wait for it in the exchange of gradients. So the loss
    by data may be as large as the sum of the waits of all ranks. The rank that comes last to an exchange does
    not wait for others: its duration is that of the exchange itself.

    Args:
        seconds: [ranks], duration of an ordinary update.
        waiting: [ranks], seconds of an ordinary update in which the rank waits for data.
        images: Images of an ordinary update, over all ranks.
        own: [ranks, samples], seconds that a rank computes in a sample.
        exchange: [ranks, samples], seconds of the exchange of gradients in a sample, with waits for others.
    """
    total = float(seconds.mean())
    medians = np.median(own, axis=1)
    share = min(1.0, float(medians.mean()) / total)
    possible = {
        EXCHANGE: float(np.median(exchange.min(axis=0))) / total,
        UNEQUAL: max(0.0, float(medians.max() - medians.mean())) / total,  # the mean is rounded
        DATA: float(waiting.sum()) / total,
        OTHER: 1.0,
    }
    losses = {}
    rest = 1.0 - share
    for cause, loss in possible.items():
        losses[cause] = min(rest, loss)
        rest -= losses[cause]
    ordered = {cause: losses[cause] for cause in (DATA, EXCHANGE, UNEQUAL, OTHER)}
    return Scaling(len(own), images / total, share, ordered, int(medians.argmax()))


class ScalingMeter(StepObserver):
    """Measures ordinary updates, then samples, and logs the line once per process. All ranks need one.

    Args:
        state: State of a run with several ranks, new or resumed.
        updates: Number of updates of the whole run.
        describe: Function that returns the line about the scaling.
    """

    def __init__(self, state: TrainState, updates: int, describe: Callable[[Scaling], str]) -> None:
        self._state = state
        self._samples = choose_samples(updates)
        self._describe = describe
        self._wait = build_data_wait(state.runtime)
        self._begin = state.update + self._samples.warm_up
        self._finished = False
        self._sampling = False  # whether the current step is a sample that is timed
        self._start = 0.0
        self._seconds = 0.0
        self._images = 0
        self._ordinary = 0
        self._exchanging = 0.0
        self._computing = 0.0
        self._rows: list[tuple[float, float]] = []  # of the samples: computing, exchanging

    @property
    def _is_ordinary(self) -> bool:
        update = self._state.update
        return not self._finished and update >= self._begin and self._samples.precedes(update)

    def choose_step(self, step: Step) -> Step:
        """Returns a step that times the samples, and otherwise equals ``step``."""

        def sampled_step(state: TrainState, batch: Batch, hooks: StepHooks) -> paddle.Tensor:
            if state.update not in self._samples:
                return step(state, batch, hooks)
            self._sampling = not self._finished and self._ordinary >= _FEWEST
            if not self._sampling:
                return _step_apart(step, state, batch, hooks)
            before = self._exchanging
            state.runtime.synchronize()
            start = time.perf_counter()
            sums = _step_apart(step, state, batch, hooks)
            state.runtime.synchronize()
            self._sampling = False
            self._computing += time.perf_counter() - start - (self._exchanging - before)
            return sums

        return sampled_step

    @override
    def phase(self, phase: Phase) -> AbstractContextManager[None] | None:
        """Returns a context that times the phase, if it is measured."""
        if phase == "data wait" and self._is_ordinary:
            return self._wait.waiting()
        return self._exchange() if phase == "all-reduce" and self._sampling else None

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        self._state.runtime.synchronize()
        start = time.perf_counter()
        yield
        self._state.runtime.synchronize()
        self._exchanging += time.perf_counter() - start

    @override
    def begin_batch(self) -> None:
        """Starts the time of a batch."""
        if self._is_ordinary and not self._ordinary:
            self._state.runtime.synchronize()
        self._start = time.perf_counter()

    @override
    def on_batch(self, state: TrainState, batch: Batch) -> None:
        """Counts the images of ordinary updates."""
        if self._is_ordinary:
            self._images += batch.valid

    @override
    def on_update(self, run: Run) -> None:
        """Adds a sample. After the last one, logs the line."""
        update = run.state.update - 1
        if self._finished or update not in self._samples or not self._computing:
            return
        self._rows.append((self._computing, self._exchanging))
        self._computing = self._exchanging = 0.0
        if self._samples.ends_with(update):
            self._finished = True
            run.log(self._describe(self._gather()))

    @override
    def end_batch(self, run: Run, update: bool) -> None:
        """Adds the time of a batch of an ordinary update."""
        trained = run.state.update - update  # the number of the update to which the batch belongs
        if self._finished or trained < self._begin or not self._samples.precedes(trained):
            return
        if update and run.state.update in self._samples:
            run.state.runtime.synchronize()
        self._seconds += time.perf_counter() - self._start
        self._ordinary += update

    def _gather(self) -> Scaling:
        """Returns the scaling. All ranks must call it."""
        rows = np.array(self._rows)
        figures = np.array([self._seconds, self._wait.seconds, self._images])
        parts = np.concatenate([figures / self._ordinary, rows[:, 0], rows[:, 1]])
        ranks = np.stack(all_gather(parts, self._state.runtime.world_size)).astype(np.float64)
        own, exchange = np.split(ranks[:, 3:], 2, axis=1)
        return measured_scaling(ranks[:, 0], ranks[:, 1], float(ranks[:, 2].sum()), own, exchange)


def _step_apart(step: Step, state: TrainState, batch: Batch, hooks: StepHooks) -> paddle.Tensor:
    """Trains on a batch, with the exchange of gradients after the backward pass."""
    if isinstance(step, GraphedStep):
        return step(state, batch, hooks, overlap=False)
    if isinstance(state.network, paddle.DataParallel):
        return train_step(state, batch, hooks, overlap=False)
    return step(state, batch, hooks)

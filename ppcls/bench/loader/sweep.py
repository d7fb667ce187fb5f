"""The loaders' benchmark in full: all contenders in turns, then the best against the present setting."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import paddle

from ppcls.bench.loader.bare import bare_chains
from ppcls.bench.loader.bottleneck import STAGES
from ppcls.bench.loader.choice import Choice, choose, own_backend, present
from ppcls.bench.loader.contender import LEAST, Contender, Wanted, line_up, not_counted, seconds_a_run
from ppcls.bench.loader.feeds import opened
from ppcls.bench.loader.page_cache import drop, try_dropping
from ppcls.bench.loader.rounds import Run, Stopwatch, Taken, Turn, take_turns
from ppcls.bench.loader.stages import opened_stage
from ppcls.bench.loader.subject import Subject
from ppcls.bench.measure.usage import Meter
from ppcls.data.supported import check_dali, check_numpy
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import RandCropImage, count_draws
from ppcls.data.transforms.specs.rng import uniforms
from ppcls.errors import UserError

BEST, PRESENT = "best found", "present"
_TIMED = 16  # images, to estimate
_GPU_IS = 8  # times as fast as a core, for the estimate
_OPENED = 3.0  # seconds that a stage takes before it runs


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Runs of each.
        seconds: Counted ones of a run.
    """

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What will be measured.

    Attributes:
        contenders: All that can run here.
        missing: Those that can't, and why.
        remarks: What else to know of it.
        seconds: About how long it takes.
    """

    contenders: tuple[Contender, ...]
    missing: tuple[tuple[Contender, str], ...]
    remarks: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Measured:
    """What was measured; runs are in the order of the rounds.

    Attributes:
        sweep: Of the contenders.
        missing: Those that could not run, and why.
        choice: What follows from the sweep; None where the config's chain was not measured, or the last
            rounds failed.
        finals: Of `BEST` and `PRESENT`, or of the best alone where it is the present setting.
        stages: Of each stage of the best.
        interrupted: Whether Ctrl-C ended it before all was measured.
    """

    sweep: dict[Contender, list[Run]]
    missing: tuple[tuple[Contender, str], ...]
    choice: Choice | None
    finals: dict[str, list[Run]]
    stages: dict[str, list[Run]]
    interrupted: bool = False


def make_plan(subject: Subject, wanted: Wanted, effort: Effort) -> Plan:
    """Says what will be measured and how long it takes; measures a few images for that.

    Raises:
        UserError: Nothing is left to measure, or an image can't be read.
    """
    remarks = []
    if wanted.cold:
        tried = try_dropping(subject.files)
        if not tried.cold:
            wanted = replace(wanted, cold=False)
            remarks.append(f"Nothing is measured with a cold cache: {tried.describe()}.")
        _need_batches(subject)
    specs = subject.split.dataset.transform_ops
    windowed = len(specs) > 1 and isinstance(specs[1], RandCropImage)
    bare = bare_chains(subject)
    if "bare DALI" in wanted.backends and (left := [each for each in wanted.chains if each not in bare]):
        remarks.append(
            f"There is no bare pipeline of {', '.join(left)}: it is written for files of 8-bit colours, and "
            "for DecodeImage, RandCropImage, RandFlipImage, NormalizeImage."
        )
    found = line_up(wanted, on_gpu=subject.on_gpu, windowed=windowed, bare=bare)
    reasons = {each: _refusal(each, subject) for each in found if not _is_configured(each, subject)}
    able = tuple(each for each, reason in reasons.items() if not reason)
    if not able:
        why = " (dali-gpu needs a GPU)" if "DALI GPU" in wanted.backends and not subject.on_gpu else ""
        raise UserError(f"nothing is left to measure{why}; widen --backends, --chains or --vary")
    missing = tuple((each, reason) for each, reason in reasons.items() if reason)
    return Plan(able, missing, tuple(remarks), _estimate(able, subject, effort))


def _is_configured(contender: Contender, subject: Subject) -> bool:
    """Whether a decoder's setting is what the config asks for anyway."""
    if not contender.dali:
        return False
    configured = subject.settings(contender.workers, None)
    return subject.settings(contender.workers, None, **contender.dali) == configured


def _need_batches(subject: Subject) -> None:
    needed = (9 + LEAST) * subject.batch_size
    if subject.images < needed:
        raise UserError(
            f"{subject.index.source}: {subject.images} images are too few to be read from a cold disk in "
            f"batches of {subject.batch_size}: expected at least {needed}; raise --images or lower "
            "DataLoader.Train.sampler.batch_size"
        )


def _refusal(contender: Contender, subject: Subject) -> str:
    """Returns why a contender can't run; nothing where it can."""
    ops = subject.ops(contender.chain)
    if not ops or contender.backend in ("read only", "bare DALI"):
        return ""
    try:
        if contender.backend == "paddle.io":
            check_numpy(ops, "transform_ops")
        else:
            place = subject if contender.backend == "DALI GPU" else subject.on_cpu
            check_dali(ops, "transform_ops", place.settings(contender.workers, None, **contender.dali))
    except UserError as error:
        return str(error)
    return ""


def _estimate(contenders: Sequence[Contender], subject: Subject, effort: Effort) -> float:
    ops = subject.ops("config")
    positions = subject.positions[:_TIMED]
    draws = uniforms(0, 0, positions, count_draws(ops), np.zeros(len(positions), np.int64))
    encoded = [subject.index.read(position) for position in positions.tolist()]
    took = []
    for image, numbers in zip(encoded, draws, strict=True):
        began = time.perf_counter()
        run(ops, image, numbers)
        took.append(time.perf_counter() - began)
    image_seconds = statistics.median(took)  # the first takes many times as long
    cores, gpu = subject.runtime.cores, image_seconds / _GPU_IS
    a_round = 0.0
    for each in contenders:
        cost = gpu if each.backend == "DALI GPU" else image_seconds
        a_round += seconds_a_run(each, subject.batch_size, effort.seconds, cost, cores)
    finals = 2 * (a_round / len(contenders)) + len(STAGES) * (effort.seconds + _OPENED)
    return effort.rounds * (a_round + finals)


def run_count(plan: Plan, effort: Effort) -> int:
    """Returns the runs of a plan, at most."""
    return effort.rounds * (len(plan.contenders) + 2 + len(STAGES))


def measure(
    plan: Plan,
    subject: Subject,
    effort: Effort,
    done: Callable[[], None],
    swept: Callable[[Measured], None],
) -> Measured:
    """Measures all that is planned.

    Args:
        plan: What.
        subject: Of which images.
        effort: How often and how long.
        done: Is called after each run.
        swept: Is called with what is known after each round of the sweep.

    Returns:
        What was measured; where Ctrl-C ended it early, until then.

    Raises:
        UserError: An image can't be read.
        KeyboardInterrupt: Ctrl-C came before anything was measured.
    """
    finish = paddle.device.synchronize if subject.on_gpu else _nothing
    watch = Stopwatch(effort.seconds, LEAST, Meter(subject.card), finish)
    cache = _Cache(subject)
    cold = [each for each in plan.contenders if each.cold]
    warm = [each for each in plan.contenders if not each.cold]
    groups = [
        [Turn(each, partial(opened, each, subject), not_counted(each), cache.warm) for each in warm],
        [Turn(each, partial(opened, each, subject), not_counted(each), cache.cold) for each in cold],
    ]

    def known(taken: Taken[Contender]) -> Measured:
        missing = (*plan.missing, *taken.failed.items())
        return Measured(taken.runs, missing, None, {}, {}, taken.interrupted)

    taken = take_turns(groups, effort.rounds, watch, done, lambda each: swept(known(each)))
    sweep, missing = taken.runs, (*plan.missing, *taken.failed.items())
    now = present(subject.config, subject.split, subject.runtime, cold=bool(cold))
    choice = choose(sweep, now, own_backend(subject.runtime))
    if taken.interrupted and not taken.runs:
        raise KeyboardInterrupt
    if choice is None or taken.interrupted:
        return known(taken)
    last = take_turns(_last_groups(choice, subject, cache), effort.rounds, watch, done)
    if last.failed or last.interrupted:
        missing = (*missing, *((choice.best, f"{name}: {reason}") for name, reason in last.failed.items()))
        return Measured(sweep, missing, None, {}, {}, last.interrupted)
    finals = {name: runs for name, runs in last.runs.items() if name in (BEST, PRESENT)}
    stages = {name: runs for name, runs in last.runs.items() if name not in finals}
    return Measured(sweep, missing, choice, finals, stages)


def _last_groups(choice: Choice, subject: Subject, cache: _Cache) -> list[list[Turn[str]]]:
    """Returns the best against the present setting, and each stage of the best."""
    best, prepare = choice.best, cache.cold if choice.best.cold else cache.warm
    read = [Turn(BEST, partial(opened, best, subject), not_counted(best), prepare)]
    if not choice.same:
        now = choice.present
        read.append(Turn(PRESENT, partial(opened, now, subject), not_counted(now), prepare))
    stages = {
        name: Turn[str](name, partial(opened_stage, name, best, subject), not_counted(best), prepare)
        for name in STAGES
    }
    return [[*read, stages.pop("disk")], list(stages.values())]


class _Cache:
    """Brings the subject's files into the page cache, or out of it, where they are not there already."""

    def __init__(self, subject: Subject) -> None:
        self._subject, self._warm = subject, False

    def warm(self) -> None:
        if not self._warm:
            self._subject.read_all()
            self._warm = True

    def cold(self) -> None:
        drop(self._subject.files)
        self._warm = False


def _nothing() -> None:
    """On a CPU a batch that arrived is done."""

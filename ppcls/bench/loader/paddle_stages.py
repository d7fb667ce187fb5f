"""One stage of paddle.io's loader alone: its workers do that, and hand nothing over but at the last stage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.bench.loader.bottleneck import Stage
from ppcls.bench.loader.contender import Contender
from ppcls.bench.loader.feeds import Counts, from_workers
from ppcls.bench.loader.subject import Subject
from ppcls.data.transforms.numpy_ops import decide_and_apply, run

Array = NDArray[Any]


def _work(
    make: Callable[[int], Any], function: Callable[[Any], Array], contender: Contender, subject: Subject
) -> Counts:
    """Holds what ``make`` gives of each position, and has the workers do ``function`` with it."""
    rows = subject.held()
    held = {position: make(position) for row in rows for position in row}
    yield from from_workers(
        lambda position: function(held[position]), itertools.cycle(rows), contender.workers
    )


def _nothing_of(image: Array) -> Array:
    return np.asarray([image.size])


def _decode(contender: Contender, subject: Subject) -> Counts:
    decoder, none = subject.ops("config")[:1], np.zeros(0, np.float32)
    return _work(subject.index.read, lambda data: _nothing_of(run(decoder, data, none)), contender, subject)


def _transform(contender: Contender, subject: Subject) -> Counts:
    decoder, *ops = subject.ops("config")

    def make(position: int) -> tuple[Array, NDArray[np.float32]]:
        draws = subject.draws(position)
        return run((decoder,), subject.index.read(position), draws), draws

    def transform(held: tuple[Array, NDArray[np.float32]]) -> Array:
        image, draws = held
        for op in ops:
            image = decide_and_apply(op.spec, image, draws[op.slot : op.slot + op.spec.draws])
        return _nothing_of(np.ascontiguousarray(image))

    return _work(make, transform, contender, subject)


def _hand_over(contender: Contender, subject: Subject) -> Counts:
    ops = subject.ops("config")

    def make(position: int) -> Array:
        return run(ops, subject.index.read(position), subject.draws(position))

    return _work(make, lambda image: image, contender, subject)


PADDLE_STAGES: dict[Stage, Callable[[Contender, Subject], Counts]] = {
    "decode": _decode,
    "transform": _transform,
    "hand-over": _hand_over,
}

"""Each contender of the loaders' benchmark at work: built, iterated as long as is wanted, and ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from nvidia.dali import Pipeline
from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]

from ppcls.bench.loader.bare import bare_chain
from ppcls.bench.loader.contender import Contender
from ppcls.bench.loader.subject import Subject
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.reader import build_reader, shut_down
from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings, collect_before_fork, exit_with_parent
from ppcls.data.sampling.order import Cursor, Order

Counts = Generator[int, None, None]  # images of each batch


@contextmanager
def opened(contender: Contender, subject: Subject) -> Iterator[Iterator[int]]:
    """Lends the batches of a contender as numbers of images: without end, or a cold one's until all are read.

    Raises:
        UserError: An image can't be read, or a transform has no form for this backend.
    """
    match contender.backend:
        case "read only":
            feed = _read_only(contender, subject)
        case "bare DALI":
            feed = _bare(contender, subject)
        case "paddle.io":
            feed = _paddle(contender, subject)
        case _:
            feed = _dali(contender, subject)
    with closing(feed):
        yield feed


def _steps(order: Order, *, once: bool) -> Iterator[list[int]]:
    """Yields the positions of each batch."""
    for epoch in range(1) if once else itertools.count():
        for step in range(len(order)):
            yield order.at(Cursor(epoch, step)).indices.tolist()


def _through(loader: Loader, subject: Subject, *, once: bool) -> Counts:
    for _ in range(1) if once else itertools.count():
        for batch in loader:
            if subject.on_gpu and not batch.image.place.is_gpu_place():
                batch.image.cuda()
            yield batch.valid


def _read_only(contender: Contender, subject: Subject) -> Counts:
    order = subject.order(once=contender.cold)
    with ThreadPoolExecutor(contender.workers) as pool:
        for positions in _steps(order, once=contender.cold):
            yield sum(1 for _ in pool.map(subject.index.read, positions))


def _bare(contender: Contender, subject: Subject) -> Counts:
    settings = subject.settings(contender.workers, contender.prefetch)
    pipeline = bare_chain(contender.chain, subject, settings)
    pipeline.build()
    try:
        for _ in range(subject.images // subject.batch_size) if contender.cold else itertools.count():
            yield len(pipeline.run()[0])
    finally:
        end(pipeline)


def end(pipeline: Pipeline) -> None:
    """Ends a pipeline, and gives its memory back."""
    shut_down(pipeline)
    ReleaseUnusedMemory()


def _dali(contender: Contender, subject: Subject) -> Counts:
    place = subject if contender.backend == "DALI GPU" else subject.on_cpu
    settings = place.settings(contender.workers, contender.prefetch, **contender.dali)
    order = subject.order(once=contender.cold)
    if contender.chain == "read":
        with ThreadPoolExecutor(settings.threads) as pool:
            reader = build_reader(subject.index, order, settings, subject.ops("config")[0].spec, pool)
            try:
                for _ in range(len(order)) if contender.cold else itertools.count():
                    yield len(reader.read().files)
            finally:
                reader.close()
        return
    loader = DaliLoader(subject.index, order, subject.ops(contender.chain), settings)
    try:
        yield from _through(loader, subject, once=contender.cold)
    finally:
        loader.release()


def _paddle(contender: Contender, subject: Subject) -> Counts:
    order = subject.order(once=contender.cold)
    if contender.chain == "read":
        steps = _steps(order, once=contender.cold)
        yield from from_workers(partial(_size, subject), steps, contender.workers)
        return
    settings = PaddleSettings(contender.workers, subject.split.loader.use_shared_memory)
    loader = PaddleLoader(subject.index, order, subject.ops(contender.chain), settings)
    yield from _through(loader, subject, once=contender.cold)


def _size(subject: Subject, position: int) -> NDArray[Any]:
    """Reads an image and hands over nothing but its size."""
    return np.asarray([len(subject.index.read(position))])


class _Each(paddle.io.Dataset):  # type: ignore[misc]
    """What a function makes of each position."""

    def __init__(self, function: Callable[[int], NDArray[Any]]) -> None:
        super().__init__()
        self._function = function

    def __getitem__(self, position: int) -> NDArray[Any]:
        return self._function(position)

    def __len__(self) -> int:
        return 1 << 40  # it is never asked for all


class _Batches(paddle.io.BatchSampler):  # type: ignore[misc]
    def __init__(self, steps: Iterator[list[int]]) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[list[int]]:
        return self._steps

    def __len__(self) -> int:
        return 1 << 40


def from_workers(function: Callable[[int], NDArray[Any]], steps: Iterator[list[int]], workers: int) -> Counts:
    """Has paddle.io's workers do something for each position, and yields the images of each batch.

    Args:
        function: From a position to what is handed over: arrays of one shape.
        steps: Positions of each batch.
        workers: Processes; 0 for this one.
    """
    loader = paddle.io.DataLoader(
        _Each(function),
        batch_sampler=_Batches(steps),
        collate_fn=_stack,
        num_workers=workers,
        use_shared_memory=workers > 0,
        return_list=True,
        worker_init_fn=exit_with_parent,
    )
    if workers:
        collect_before_fork()
    batches = iter(loader)
    try:
        for (batch,) in batches:
            yield int(batch.shape[0])
    finally:
        batches._try_shutdown_all()  # else the workers of an iteration that is broken off live on


def _stack(rows: Sequence[NDArray[Any]]) -> tuple[NDArray[Any]]:
    return (np.stack(rows),)

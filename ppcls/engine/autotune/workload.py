"""Work to measure: the training step of a run, on one synthetic batch or on the run's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.fused.folded import constant_weights
from ppcls.data.loaders.base import OrderedLoader
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.section import Split
from ppcls.data.transforms.base import check_chain
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.core.settings import ExecutionSettings
from ppcls.engine.core.state import TrainState
from ppcls.engine.cuda_graph.graphed_forward import GraphedForward
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.evaluation.forward import Forward, run_model
from ppcls.engine.execution import connect
from ppcls.engine.profiling.data_wait import build_data_wait
from ppcls.engine.profiling.phase_timer import PhaseTimer
from ppcls.runtime.start import Runtime

CHECKED_UPDATES = 8  # number of updates whose losses are recorded; a CUDA graph is captured before the fourth
_EPOCH_STEPS = 100
_CHECKED_RATE = 1e-3  # learning rate of the updates whose losses are recorded


@dataclass(frozen=True)
class Workload:
    """Work that one rank repeats.

    Attributes:
        update: Runs one optimizer update, whose phases are timed if there is a timer.
        images: Number of images per update on this rank.
        take_wait: Returns the seconds for which updates waited for data since the previous call.
        execution: Description of how steps are executed.
        has_phases: Whether ``update`` can time phases.
        release: Releases threads and memory.
        losses: Mean losses of the first `CHECKED_UPDATES` batches, as scalars; empty if not recorded.
        feed: Continues with the batches of another loader of the same order; None if this is not possible.
        infer: Computes a number of batches as an evaluation does, and returns the number of their images;
            None if this is not possible. Training must not continue after it.
    """

    update: Callable[[PhaseTimer | None], None]
    images: int
    take_wait: Callable[[], float]
    execution: str
    has_phases: bool
    release: Callable[[], None]
    losses: Sequence[paddle.Tensor] = ()
    feed: Callable[[Loader], None] | None = None
    infer: Callable[[int], int] | None = None


def training_workload(
    state: TrainState, settings: ExecutionSettings, arch: AnyArch, split: Split
) -> Workload:
    """Returns ppcls's training step.

    Args:
        state: New state of a run, whose loader may be a `SyntheticLoader`.
        settings: How steps are executed.
        arch: Architecture of the model.
        split: Training data.
    """
    # The recorded losses depend on the gradients. Later the learning rate is 0, so that the model does not
    # memorize the few images.
    state = replace(state, schedule=lambda update: _CHECKED_RATE if update < CHECKED_UPDATES else 0.0)
    state, step, execution = connect(state, settings, arch, split)
    state.network.train()
    batches = _endless(state.loader)

    def feed(loader: Loader) -> None:
        nonlocal batches
        batches = _endless(loader)

    wait = build_data_wait(state.runtime)
    order = state.loader.order

    losses: list[paddle.Tensor] = []

    def update(timer: PhaseTimer | None) -> None:
        phases = NO_HOOKS if timer is None else timer
        # The phases of a captured step can't be timed.
        run_step = step if timer is None else timer.eager_step
        for number in range(1, order.accumulate + 1):
            last = number == order.accumulate
            if timer is not None:
                timer.begin_batch()
            with phases("data wait"), wait.waiting():
                batch = next(batches)
            # The last batch of an epoch may have fewer valid rows; train on all of them.
            full = replace(batch, update=last, valid=order.batch_size, weight=1 / order.accumulate)
            sums = run_step(state, full, phases)
            if len(losses) < CHECKED_UPDATES:
                losses.append(sums[0] / order.batch_size)
            if timer is not None:
                timer.end_batch(last)

    def take_wait() -> float:
        seconds = wait.seconds
        wait.seconds = 0.0
        return seconds

    forward: Forward = run_model
    if isinstance(step, GraphedStep):  # as in evaluations of the run
        forward = GraphedForward(step.capture, lambda: step.captured)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def infer(count: int) -> int:
        state.model.eval()
        image = next(batches).image
        with constant_weights(state.model), state.precision.evaluation():
            for _ in range(count):
                forward(state.model, state.precision.images(image, training=False))
        return count * order.batch_size

    images = order.batch_size * order.accumulate
    return Workload(update, images, take_wait, execution, True, state.loader.release, losses, feed, infer)


def _endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader


def image_shape(data_format: str, split: Split) -> tuple[int, ...]:
    """Returns the shape of a split's images in the model's layout: [C, H, W] or [H, W, C]."""
    chain = check_chain(split.dataset.transform_ops)
    assert chain.size is not None  # by the config's check
    return (chain.channels, *chain.size) if data_format == "NCHW" else (*chain.size, chain.channels)


@dataclass(frozen=True)
class SyntheticIndex:
    """Labels of synthetic images, which exist only as a batch on the device.

    Attributes:
        labels: See `ppcls.data.index.protocol.Index`.
    """

    labels: NDArray[Any]
    source: Path = Path("synthetic")

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.labels)

    def name(self, position: int) -> str:
        """Returns the name of an image."""
        return f"synthetic image {position}"

    where = name

    def read(self, position: int) -> bytes:  # noqa: ARG002 - no image has a file
        """Returns an empty bytes object, because there are no files."""
        return b""


class SyntheticLoader(OrderedLoader):
    """A loader that yields the same batch of uniform noise, which is already on the device.

    The labels cycle through the classes. With several labels per image, every second class is 1. Batch
    transforms, such as Mixup, are not applied.

    Args:
        split: Training data, whose batches have the same shape.
        arch: Number of classes and layout of the images.
        runtime: Device and ranks.
        accumulate: Number of batches per update.
        noise: Largest change of each pixel. Pixels are between -1 and 1.
    """

    def __init__(
        self, split: Split, arch: AnyArch, runtime: Runtime, *, accumulate: int = 1, noise: float = 0.0
    ) -> None:
        rank = runtime.rank
        world = runtime.world_size
        rows = split.sampler.rows(world)
        count = rows * world * _EPOCH_STEPS
        labels: NDArray[Any] = np.arange(count, dtype=np.int64) % arch.class_num
        if split.dataset.labels == "several":
            labels = np.broadcast_to(np.arange(arch.class_num, dtype=np.float32) % 2, (count, arch.class_num))
        order = Order(SequentialSampler(count), rows, rank=rank, world=world, accumulate=accumulate)
        super().__init__(SyntheticIndex(labels), order, None)
        shape = (rows, *image_shape("NCHW", split))
        generator = np.random.default_rng(rank)
        images = generator.uniform(-1, 1, shape).astype(np.float32)
        if noise:
            images += generator.uniform(-noise, noise, shape).astype(np.float32)
        if arch.data_format == "NHWC":  # the same images: autotune compares the losses of both layouts
            images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        self._image = paddle.to_tensor(images).astype(check_chain(split.dataset.transform_ops).dtype)
        self._label = paddle.to_tensor(labels[rank * rows : (rank + 1) * rows])

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batch until the end of the epoch."""
        for _ in range(self._cursor.step, len(self)):
            yield self._advance(self._image, self._label)

    def release(self) -> None:
        """Does nothing, because there are no threads or workers."""

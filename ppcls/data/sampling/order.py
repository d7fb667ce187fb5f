"""Which sample comes at which step on which rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.data.sampling.sampler import EpochSampler, Positions
from ppcls.errors import UserError

_KEYS = {"accumulate": "Global.update_freq"}  # of the config, where a state has another name


@dataclass(frozen=True)
class Cursor:
    """A position in a run: the next batch to come.

    Attributes:
        epoch: From 0.
        step: Batch of the epoch, from 0.
    """

    epoch: int = 0
    step: int = 0

    def next(self, steps_per_epoch: int, batches: int = 1) -> Cursor:
        """Returns the position one batch later, or so many."""
        epochs, step = divmod(self.step + batches, steps_per_epoch)
        return Cursor(self.epoch + epochs, step)


@dataclass(frozen=True)
class StepSamples:
    """One rank's part of one step.

    Attributes:
        indices: [B] int64, positions in the dataset; rows from ``valid`` on repeat others.
        repeats: [B] int64, how often the same position came before in this epoch, over all ranks.
        valid: Leading real samples, 0..B.
        weight: See `ppcls.data.loaders.batch.Batch`.
        update: See `ppcls.data.loaders.batch.Batch`.
    """

    indices: Positions
    repeats: NDArray[np.int64]
    valid: int
    weight: float
    update: bool


# Loaders ask at every step, for the running epoch and, working ahead, the next: two loaders, two epochs each.
@lru_cache(maxsize=4)
def _epoch_of(sampler: EpochSampler, seed: int, epoch: int) -> tuple[Positions, NDArray[np.int64]]:
    """Returns an epoch's positions, and how often each came before in it."""
    positions = sampler.epoch(seed, epoch)
    return positions, count_repeats(positions)


def count_repeats(positions: Positions) -> NDArray[np.int64]:
    """Returns how often each entry came before in the array: [N] int64, for ``[7, 5, 7, 7]`` [0, 0, 1, 2]."""
    counts = np.bincount(positions)
    repeats = np.zeros(len(positions), np.int64)
    if counts.max(initial=0) > 1:
        first = np.repeat(np.cumsum(counts) - counts, counts)  # of each entry's run among the sorted
        repeats[np.argsort(positions, kind="stable")] = np.arange(len(positions)) - first
    return repeats


class BatchOrder(Protocol):
    """What a loader must know of an order: an `Order`, or one without its bad samples."""

    @property
    def batch_size(self) -> int:
        """Rows a rank and step."""

    @property
    def seed(self) -> int:
        """Of everything random."""

    def __len__(self) -> int:
        """Returns the steps of an epoch."""

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's part of a step."""


@dataclass(frozen=True)
class Order:
    """The order of all epochs, for one rank.

    Step ``s`` covers the samples ``[s * G, (s + 1) * G)`` of the epoch's order, with the global batch
    G: it is the same set of samples however many ranks share it. A last, smaller step, or a G that the
    ranks can't share alike, is spread evenly, so no rank runs short and every rank makes the same steps.

    Attributes:
        sampler: The samples of each epoch, in order.
        batch_size: Rows a rank and step.
        seed: Of the sampler.
        rank: This process, from 0.
        world: Number of processes.
        drop_last: Leave out a last step that is smaller than G.
        accumulate: Steps an optimizer update; the epoch's last update may have fewer.
        group: So many rows that follow each other, from a step's first, stay on one rank.
        global_batch_size: G, at most ``batch_size * world``, which it is where it is None.

    Raises:
        UserError: ``group`` does not divide ``batch_size`` or G, or G has less than one group for each rank.
    """

    sampler: EpochSampler
    batch_size: int
    seed: int = 0
    rank: int = 0
    world: int = 1
    drop_last: bool = False
    accumulate: int = 1
    group: int = 1
    global_batch_size: int | None = None

    def __post_init__(self) -> None:
        name, size = "batch_size", self.batch_size
        if self.global_batch_size is not None:
            name, size = "global_batch_size", self.global_batch_size
        if size % self.group or self.batch_size % self.group:
            raise UserError(
                f"a batch of {size} does not hold whole groups of {self.group} samples, which "
                f"have to stay together; set {name} to a multiple of {self.group}"
            )
        if size < self.group * self.world and self.global_batch_size is not None:
            raise UserError(
                f"a global_batch_size of {size} is less than {self.group} for each of {self.world} processes"
            )
        if self.global_batch > self.batch_size * self.world:
            raise ValueError(f"{self.world} x {self.batch_size} rows can't hold {self.global_batch}")

    @property
    def size(self) -> int:
        """Samples of an epoch."""
        return len(self.sampler)

    @property
    def global_batch(self) -> int:
        """Samples a full step over all ranks."""
        return self.global_batch_size or self.batch_size * self.world

    def __len__(self) -> int:
        """Returns the steps of an epoch."""
        return self.size // self.global_batch if self.drop_last else -(-self.size // self.global_batch)

    def start(self, step: int) -> int:
        """Returns how many samples full steps before this one have, of all ranks."""
        return step * self.global_batch

    def rows(self, step: int) -> int:  # noqa: ARG002 - of a step's size, see `EqualPixelsOrder`
        """Returns the rows of a step on this rank, padding included."""
        return self.batch_size

    @property
    def updates_per_epoch(self) -> int:
        """Optimizer updates of an epoch."""
        return -(-len(self) // self.accumulate)

    def samples(self, first: int, last: int) -> int:
        """Returns the real samples of all ranks in the steps ``[first, last)``."""
        end = self.size if not self.drop_last else self.start(len(self))
        return min(self.start(last), end) - self.start(first)

    def positions(self, epoch: int) -> Positions:
        """Returns the samples of an epoch, of all ranks, in order: [size] int64."""
        return _epoch_of(self.sampler, self.seed, epoch)[0]

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's part of a step."""
        step = cursor.step
        start = self.start(step)
        positions, repeats = _epoch_of(self.sampler, self.seed, cursor.epoch)
        begin, end = self._share(min(self.start(step + 1), self.size) - start)
        valid = end - begin
        # Others of the epoch rather than these few again: BatchNorm sees the padding too.
        missing = self.rows(step) - valid
        padding = (self.rank * missing + np.arange(missing)) % self.size
        rows = np.concatenate([np.arange(start + begin, start + end), padding])
        first = step - step % self.accumulate
        last = min(first + self.accumulate, len(self))
        return StepSamples(
            indices=positions[rows],
            repeats=repeats[rows],
            valid=valid,
            weight=valid * self.world / self.samples(first, last),
            update=step == last - 1,
        )

    def _share(self, rows: int) -> tuple[int, int]:
        """Returns where this rank's part of a step of ``rows`` begins and ends: whole groups, or its last."""
        share, more = divmod(-(-rows // self.group), self.world)
        begin = self.rank * share + min(self.rank, more)
        end = begin + share + (self.rank < more)
        return min(begin * self.group, rows), min(end * self.group, rows)

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Returns ``cursor`` together with what gives it its meaning."""
        return {
            "epoch": cursor.epoch,
            "step": cursor.step,
            "size": self.size,
            "global_batch": self.global_batch,
            "accumulate": self.accumulate,
            "seed": self.seed,
            "sampler": self.sampler.describe(),
            "drop_last": self.drop_last,
        }

    def restore(self, state: dict[str, Any]) -> Cursor:
        """Returns the cursor of a state that `state_dict` gave, here or on another number of ranks.

        Within an epoch, another global batch or accumulation moves the cursor to the last beginning of an
        update that leaves no sample out: what lies between there and the state comes twice.

        Raises:
            UserError: The state lies within an epoch, and another size, seed or sampler would make its
                remaining samples others than those still to come.
        """
        cursor = Cursor(int(state["epoch"]), int(state["step"]))
        changed = self.changes(state)
        if not changed or not cursor.step:
            return cursor
        if others := [text for name, text in changed.items() if name in ("size", "seed", "sampler")]:
            raise UserError(
                f"the checkpoint is in the middle of epoch {cursor.epoch + 1}, but {'; '.join(others)}: "
                "the rest of the epoch would be other samples. Keep seed, sampler and dataset, or resume "
                "from a checkpoint at an epoch's end, such as epoch_N" + self.for_any_world(state)
            )
        done = cursor.step * int(state["global_batch"])
        step = min(done // self.global_batch, len(self) - 1)
        return Cursor(cursor.epoch, step - step % self.accumulate)

    def changes(self, state: dict[str, Any]) -> dict[str, str]:
        """Returns what of a state is another here, the position apart: name to text."""
        here = self.state_dict(Cursor())
        if "shuffle" in state:  # as checkpoints had it when there were two samplers
            state = {**state, "sampler": "shuffled" if state["shuffle"] else "in order"}
        return {
            name: f"{_KEYS.get(name, name)} was {state[name]} and is {here[name]}"
            for name in here
            if name not in ("epoch", "step") and state[name] != here[name]
        }

    def for_any_world(self, state: dict[str, Any]) -> str:
        """Returns, for messages, how to keep a state's global batch; nothing where it is kept."""
        if state["global_batch"] == self.global_batch:
            return ""
        return (
            ". For any number of processes: DataLoader.Train.sampler.global_batch_size="
            f"{state['global_batch']} in place of batch_size"
        )

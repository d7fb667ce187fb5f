"""Distributes the samples of an epoch over steps and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.data.sampling.sampler import EpochSampler, Positions
from ppcls.errors import UserError

_CONFIG_KEYS = {"accumulate": "Global.update_freq"}  # names of the keys in messages, if they differ


@dataclass(frozen=True)
class Cursor:
    """A position in a run: the next batch.

    Attributes:
        epoch: Epoch, from 0.
        step: Batch of the epoch, from 0.
    """

    epoch: int = 0
    step: int = 0

    def next(self, steps_per_epoch: int, batches: int = 1) -> Cursor:
        """Returns the position after a number of batches."""
        epochs, step = divmod(self.step + batches, steps_per_epoch)
        return Cursor(self.epoch + epochs, step)


@dataclass(frozen=True)
class StepSamples:
    """One rank's part of one step.

    Attributes:
        indices: [B] int64 positions in the dataset. Rows from ``valid`` on are padding and repeat other
            samples.
        repeats: [B] int64, number of earlier occurrences of the same position in this epoch, over all ranks.
        valid: Number of valid rows, 0..B.
        weight: See `ppcls.data.loaders.batch.Batch`.
        update: See `ppcls.data.loaders.batch.Batch`.
    """

    indices: Positions
    repeats: NDArray[np.int64]
    valid: int
    weight: float
    update: bool


# Two loaders ask at every step, each for the current epoch and, when they prefetch, for the next one.
@lru_cache(maxsize=4)
def _epoch_positions(sampler: EpochSampler, seed: int, epoch: int) -> tuple[Positions, NDArray[np.int64]]:
    """Returns an epoch's positions and their repeats."""
    positions = sampler.epoch(seed, epoch)
    return positions, count_repeats(positions)


def count_repeats(positions: Positions) -> NDArray[np.int64]:
    """Returns how often each entry occurred before, [N] int64: [0, 0, 1, 2] for ``[7, 5, 7, 7]``."""
    counts = np.bincount(positions)
    repeats = np.zeros(len(positions), np.int64)
    if counts.max(initial=0) > 1:
        first = np.repeat(np.cumsum(counts) - counts, counts)  # first sorted position of each entry's value
        repeats[np.argsort(positions, kind="stable")] = np.arange(len(positions)) - first
    return repeats


class BatchOrder(Protocol):
    """What loaders use of an `Order`, with or without its bad samples."""

    @property
    def batch_size(self) -> int:
        """Rows per step on one rank."""

    @property
    def seed(self) -> int:
        """Seed of all random choices."""

    def __len__(self) -> int:
        """Returns the steps of an epoch."""

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's part of a step."""


@dataclass(frozen=True)
class Order:
    """The samples of each step on one rank.

    With the global batch size G, step ``s`` covers the samples ``[s * G, (s + 1) * G)`` of the epoch,
    whatever the number of ranks. If the ranks can't share a step equally, it is spread as evenly as possible.
    All ranks make the same number of steps.

    Attributes:
        sampler: Samples of each epoch.
        batch_size: Rows per step on one rank.
        seed: Seed of the sampler.
        rank: Rank of this process.
        world: Number of ranks.
        drop_last: Whether to drop a last step with fewer than G samples.
        accumulate: Steps per optimizer update; the last update of an epoch may have fewer.
        group: Number of consecutive rows that stay together on one rank.
        global_batch_size: G, at most ``batch_size * world``; None for this maximum.

    Raises:
        UserError: ``group`` does not divide ``batch_size`` or G, or G has less than one group per rank.
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
                f"a batch of {size} can't be divided into groups of {self.group} samples that stay together; "
                f"set {name} to a multiple of {self.group}"
            )
        if size < self.group * self.world and self.global_batch_size is not None:
            raise UserError(
                f"global_batch_size {size} is too small for {self.world} processes: "
                f"each needs {self.group} or more"
            )
        if self.global_batch > self.batch_size * self.world:
            raise ValueError(f"{self.world} x {self.batch_size} rows can't hold {self.global_batch}")

    @property
    def size(self) -> int:
        """Samples of an epoch."""
        return len(self.sampler)

    @property
    def global_batch(self) -> int:
        """Samples of a full step, on all ranks."""
        return self.global_batch_size or self.batch_size * self.world

    def __len__(self) -> int:
        """Returns the steps of an epoch."""
        return self.size // self.global_batch if self.drop_last else -(-self.size // self.global_batch)

    def start(self, step: int) -> int:
        """Returns the number of samples before a step, on all ranks."""
        return step * self.global_batch

    def rows(self, step: int) -> int:  # noqa: ARG002 - `EqualPixelsOrder` uses the step
        """Returns the rows of a step on this rank, with padding."""
        return self.batch_size

    @property
    def updates_per_epoch(self) -> int:
        """Optimizer updates of an epoch."""
        return -(-len(self) // self.accumulate)

    def count_samples(self, first: int, last: int) -> int:
        """Returns the number of samples in the steps ``[first, last)``, on all ranks and without padding."""
        end = self.size if not self.drop_last else self.start(len(self))
        return min(self.start(last), end) - self.start(first)

    def positions(self, epoch: int) -> Positions:
        """Returns the samples of an epoch on all ranks, in order: [size] int64."""
        return _epoch_positions(self.sampler, self.seed, epoch)[0]

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's part of a step."""
        step = cursor.step
        start = self.start(step)
        positions, repeats = _epoch_positions(self.sampler, self.seed, cursor.epoch)
        begin, end = self._rank_rows(min(self.start(step + 1), self.size) - start)
        valid = end - begin
        # BatchNorm sees the padding, so use other samples of the epoch instead of repeating these few.
        missing = self.rows(step) - valid
        padding = (self.rank * missing + np.arange(missing)) % self.size
        rows = np.concatenate([np.arange(start + begin, start + end), padding])
        first = step - step % self.accumulate
        last = min(first + self.accumulate, len(self))
        return StepSamples(
            indices=positions[rows],
            repeats=repeats[rows],
            valid=valid,
            weight=valid * self.world / self.count_samples(first, last),
            update=step == last - 1,
        )

    def _rank_rows(self, rows: int) -> tuple[int, int]:
        """Returns begin and end of this rank's part of a step with ``rows`` samples, in whole groups."""
        share, more = divmod(-(-rows // self.group), self.world)
        begin = self.rank * share + min(self.rank, more)
        end = begin + share + (self.rank < more)
        return min(begin * self.group, rows), min(end * self.group, rows)

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Returns ``cursor`` and all settings that it depends on."""
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
        """Returns the cursor of a state from `state_dict`, possibly of another number of ranks.

        If the global batch or the accumulation changed within an epoch, the cursor moves back to the start of
        an update, so that no sample is skipped and a few are repeated.

        Raises:
            UserError: The state is within an epoch, and size, seed or sampler changed, so that the rest of
                the epoch would have other samples.
        """
        cursor = Cursor(int(state["epoch"]), int(state["step"]))
        changed = self.changes(state)
        if not changed or not cursor.step:
            return cursor
        if others := [text for name, text in changed.items() if name in ("size", "seed", "sampler")]:
            raise UserError(
                f"the checkpoint is in the middle of epoch {cursor.epoch + 1}, but {'; '.join(others)}: "
                "the rest of the epoch would have other samples. Keep seed, sampler and dataset, or resume "
                "from a checkpoint at the end of an epoch, such as epoch_N" + self.resume_hint(state)
            )
        done = cursor.step * int(state["global_batch"])
        step = min(done // self.global_batch, len(self) - 1)
        return Cursor(cursor.epoch, step - step % self.accumulate)

    def changes(self, state: dict[str, Any]) -> dict[str, str]:
        """Returns a text for each setting in ``state`` that is different now, by name."""
        current = self.state_dict(Cursor())
        if "shuffle" in state:  # in old checkpoints, when there were only two samplers
            state = {**state, "sampler": "shuffled" if state["shuffle"] else "in order"}
        return {
            name: f"{_CONFIG_KEYS.get(name, name)} was {state[name]} and is {current[name]}"
            for name in current
            if name not in ("epoch", "step") and state[name] != current[name]
        }

    def resume_hint(self, state: dict[str, Any]) -> str:
        """Returns how to keep a state's global batch on any number of ranks; an empty text if it is kept."""
        if state["global_batch"] == self.global_batch:
            return ""
        return (
            ". For any number of processes set DataLoader.Train.sampler.global_batch_size="
            f"{state['global_batch']} instead of batch_size"
        )

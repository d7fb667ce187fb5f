"""Distributes the samples of an epoch over steps and ranks.

Decisions:
- The samples of a step are a function of seed, epoch and step. Loaders need no common state, a checkpoint
  stores only the position, and an error can name the images of a step that is long past.
- The unit is the global batch, not the batch of a rank, so that a run can resume with another number of
  ranks.
- A batch always has all its rows, and a number of valid ones. CUDA graphs need one shape,
  and ranks need the same number of steps. Padding is never counted: losses and metrics use the valid rows.
- The weight of a batch makes the mean over ranks and accumulated steps the mean over the samples of the
  update, although ranks and steps may have different numbers of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.data.sampling.epoch_samplers import EpochSampler, Positions
from ppcls.errors import UserError, counted

_CONFIG_KEYS = {"accumulate": "Global.update_freq"}  # config keys of settings, for messages


@dataclass(frozen=True)
class Cursor:
    """A position in a run.

    Attributes:
        epoch: Epoch of the next batch, from 0.
        step: Number of the next batch in its epoch, from 0.
    """

    epoch: int = 0
    step: int = 0

    def next(self, steps_per_epoch: int, batches: int = 1) -> Cursor:
        """Returns the position after ``batches`` more batches."""
        epochs, step = divmod(self.step + batches, steps_per_epoch)
        return Cursor(self.epoch + epochs, step)


@dataclass(frozen=True)
class StepSamples:
    """Samples of one step on one rank.

    Attributes:
        indices: [B] int64, positions in the dataset. Rows after the first ``valid`` rows are padding and
            repeat other samples.
        repeats: [B] int64, number of earlier occurrences of the same position in the epoch, over all ranks.
        valid: Number of valid rows, 0..B.
        weight: See `ppcls.data.loaders.batch.Batch`.
        update: See `ppcls.data.loaders.batch.Batch`.
    """

    indices: Positions
    repeats: NDArray[np.int64]
    valid: int
    weight: float
    update: bool


# Up to two loaders call this function at every step. Each one needs the positions of the current epoch and,
# because of prefetching, of the next epoch. So there are four cache entries.
@lru_cache(maxsize=4)
def _epoch_positions(sampler: EpochSampler, seed: int, epoch: int) -> tuple[Positions, NDArray[np.int64]]:
    """Returns the positions of an epoch's samples, and the number of earlier occurrences of each; cached."""
    positions = sampler.epoch(seed, epoch)
    return positions, count_repeats(positions)


def count_repeats(positions: Positions) -> NDArray[np.int64]:
    """Counts the earlier occurrences of each entry: ``[7, 5, 7, 7]`` results in [0, 0, 1, 2]; [N] int64."""
    counts = np.bincount(positions)
    repeats = np.zeros(len(positions), np.int64)
    if counts.max(initial=0) > 1:
        # For each entry in sorted order: the sorted position of the first entry with the same value.
        first = np.repeat(np.cumsum(counts) - counts, counts)
        repeats[np.argsort(positions, kind="stable")] = np.arange(len(positions)) - first
    return repeats


class BatchOrder(Protocol):
    """Part of the interface of `Order` that loaders use."""

    @property
    def batch_size(self) -> int:
        """Number of rows per step on one rank."""

    @property
    def seed(self) -> int:
        """Seed of all random choices."""

    def __len__(self) -> int:
        """Returns the number of steps per epoch."""

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's samples of the step at ``cursor``."""


@dataclass(frozen=True)
class Order:
    """Assigns the samples of each epoch to steps, and selects this rank's samples of each step.

    With a global batch size of G, step ``s`` has the samples ``[s * G, (s + 1) * G)`` of the epoch on any
    number of ranks. If a step can't be divided equally, the ranks' parts differ by at most one group. All
    ranks have the same number of steps.

    Attributes:
        sampler: Samples of each epoch.
        batch_size: Number of rows per step on one rank.
        seed: Seed of the sampler.
        rank: Rank of this process.
        world: Number of ranks.
        drop_last: Whether to drop the last step if it has fewer than G samples.
        accumulate: Number of steps per optimizer update. The last update of an epoch may have fewer steps.
        group: Number of consecutive rows that stay together on one rank.
        global_batch_size: G, at most ``batch_size * world``; None for this maximum.

    Raises:
        UserError: ``batch_size`` or G is not a multiple of ``group``, or G is smaller than one group per
            rank.
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
        name = "batch_size"
        size = self.batch_size
        if self.global_batch_size is not None:
            name = "global_batch_size"
            size = self.global_batch_size
        if size % self.group or self.batch_size % self.group:
            raise UserError(
                f"a batch of {size} can't be divided into groups of {counted(self.group, 'sample')} that "
                f"stay together; set {name} to a multiple of {self.group}"
            )
        if size < self.group * self.world and self.global_batch_size is not None:
            raise UserError(
                f"global_batch_size {size} is too small for {counted(self.world, 'process')}: each process "
                f"needs at least {counted(self.group, 'sample')}; expected {self.group * self.world} or more"
            )
        if self.global_batch > self.batch_size * self.world:
            raise ValueError(
                f"expected a global batch of at most {self.world} x {counted(self.batch_size, 'sample')}, "
                f"got {self.global_batch}"
            )

    @property
    def size(self) -> int:
        """Number of samples per epoch."""
        return len(self.sampler)

    @property
    def global_batch(self) -> int:
        """Number of samples of a full step on all ranks."""
        return self.global_batch_size or self.batch_size * self.world

    def __len__(self) -> int:
        """Returns the number of steps per epoch."""
        return self.size // self.global_batch if self.drop_last else -(-self.size // self.global_batch)

    def start(self, step: int) -> int:
        """Returns the number of samples before a step, on all ranks."""
        return step * self.global_batch

    def rows(self, step: int) -> int:  # noqa: ARG002 - `EqualPixelsOrder` uses the step
        """Returns the number of rows of a step on this rank, including padding."""
        return self.batch_size

    @property
    def updates_per_epoch(self) -> int:
        """Number of optimizer updates per epoch."""
        return -(-len(self) // self.accumulate)

    def count_samples(self, first: int, last: int) -> int:
        """Returns the number of samples in the steps ``[first, last)``, on all ranks and without padding."""
        end = self.size if not self.drop_last else self.start(len(self))
        return min(self.start(last), end) - self.start(first)

    def positions(self, epoch: int) -> Positions:
        """Returns the positions of an epoch's samples on all ranks, in order, [size] int64."""
        return _epoch_positions(self.sampler, self.seed, epoch)[0]

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's samples of the step at ``cursor``."""
        step = cursor.step
        start = self.start(step)
        positions, repeats = _epoch_positions(self.sampler, self.seed, cursor.epoch)
        begin, end = self._rank_rows(min(self.start(step + 1), self.size) - start)
        valid = end - begin
        # Padding affects the statistics of BatchNorm. So it consists of other samples of the epoch instead of
        # the few samples of this step.
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
        """Returns the start and end of this rank's share of ``rows`` samples, without splitting groups."""
        share, more = divmod(-(-rows // self.group), self.world)
        begin = self.rank * share + min(self.rank, more)
        end = begin + share + (self.rank < more)
        return min(begin * self.group, rows), min(end * self.group, rows)

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Returns ``cursor`` and all settings that its meaning depends on."""
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
        """Returns the cursor in a state that `state_dict` returned, possibly with another number of ranks.

        If the state is in the middle of an epoch, and the global batch size or the number of accumulated
        steps changed, the cursor moves back to the start of an update. So no sample is skipped, and a few
        samples are repeated.

        Raises:
            UserError: The state is in the middle of an epoch, and size, seed or sampler changed, so the rest
                of the epoch would have other samples.
            ArithmeticError, KeyError, TypeError, ValueError: ``state`` is invalid.
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
        if (batch := int(state["global_batch"])) <= 0:
            raise ValueError(f"global_batch: expected an integer > 0, got {batch}")
        done = cursor.step * batch
        step = min(done // self.global_batch, len(self) - 1)
        return Cursor(cursor.epoch, step - step % self.accumulate)

    def changes(self, state: dict[str, Any]) -> dict[str, str]:
        """Returns a description of each setting that differs from ``state``, keyed by setting."""
        current = self.state_dict(Cursor())
        if "shuffle" in state:  # checkpoints of versions that had only two samplers
            state = {**state, "sampler": "shuffled" if state["shuffle"] else "in order"}
        return {
            name: f"{_CONFIG_KEYS.get(name, name)} was {state[name]} and is now {current[name]}"
            for name in current
            if name not in ("epoch", "step") and state[name] != current[name]
        }

    def resume_hint(self, state: dict[str, Any]) -> str:
        """Returns advice for keeping the global batch size of ``state``, or "" if the size is unchanged."""
        if state["global_batch"] == self.global_batch:
            return ""
        return (
            ". To resume on any number of processes, set DataLoader.Train.sampler.global_batch_size="
            f"{state['global_batch']} instead of batch_size"
        )

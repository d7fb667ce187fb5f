"""Simulates the index and the order of shards with 100 million images, without a list of all images.

The index has the number of images of each shard. An epoch shuffles the shards, and then the images of each
window of consecutive shards. So a rank needs the images of one window, and reads from few shards at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_WINDOW = 64  # shards whose images are shuffled together
_KEPT = 2  # number of windows in memory: a step may begin in one window and end in the next

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class ShardOrder:
    """Order of an epoch, which depends on the seed and the epoch, but not on the number of ranks.

    Attributes:
        sizes: [S] number of images of each shard.
        seed: Seed of the order.
        epoch: Number of the epoch.
    """

    sizes: Positions
    seed: int = 0
    epoch: int = 0
    _windows: dict[int, Positions] = field(default_factory=dict)

    @cached_property
    def _shards(self) -> Positions:
        """Shuffled shards, [S]."""
        return np.random.default_rng([self.seed, self.epoch]).permutation(len(self.sizes))

    @cached_property
    def _starts(self) -> Positions:
        """Position of the first image of each shard in the data set, [S]."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def _window_ends(self) -> Positions:
        """Number of images in the order up to the end of each window."""
        ends = np.cumsum(self.sizes[self._shards])
        return np.append(ends[_WINDOW - 1 :: _WINDOW], ends[-1:])[: -(-len(ends) // _WINDOW)]

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def window(self, number: int) -> Positions:
        """Returns the images of a window in their order, as positions in the data set."""
        if number not in self._windows:
            chosen = self._shards[number * _WINDOW : (number + 1) * _WINDOW]
            images = np.concatenate([self._starts[at] + np.arange(self.sizes[at]) for at in chosen])
            while len(self._windows) >= _KEPT:
                self._windows.pop(next(iter(self._windows)))
            rng = np.random.default_rng([self.seed, self.epoch, number])
            self._windows[number] = rng.permutation(images)
        return self._windows[number]

    def slice(self, start: int, end: int) -> Positions:
        """Returns the images of a part of the epoch, [end - start] or fewer at the end of the epoch."""
        end = min(end, len(self))
        parts = []
        while start < end:
            number = int(np.searchsorted(self._window_ends, start, side="right"))
            first = int(self._window_ends[number - 1]) if number else 0
            last = min(end, int(self._window_ends[number]))
            parts.append(self.window(number)[start - first : last - first])
            start = last
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def batch(self, step: int, rank: int, ranks: int, size: int) -> Positions:
        """Returns the images of a rank in a step of the epoch."""
        start = (step * ranks + rank) * size
        return self.slice(start, start + size)

    def locate(self, positions: Positions) -> tuple[Positions, Positions]:
        """Returns shard and number in the shard of each position."""
        shards = np.searchsorted(self._starts, positions, side="right") - 1
        return shards, positions - self._starts[shards]


def check_order(count: int, ranks: int, batch: int = 256) -> None:
    """Simulates an epoch of all ranks, and of half the ranks with the double batch.

    Both must read the same images in each step, and each image once. A rank that begins in the middle of the
    epoch, as after a resume, must read the same images as one that reads from its beginning.

    Raises:
        AssertionError: They do not.
    """
    sizes = np.full(-(-count // 10_000), 10_000, np.int64)
    sizes[-1] = count - sizes[:-1].sum()
    order = ShardOrder(sizes)
    seen = np.zeros(count, np.bool_)
    steps = -(-count // (ranks * batch))
    for step in range(steps):
        images = np.concatenate([order.batch(step, rank, ranks, batch) for rank in range(ranks)])
        halves = [order.batch(step, rank, ranks // 2, 2 * batch) for rank in range(ranks // 2)]
        assert np.array_equal(images, np.concatenate(halves))
        shards, numbers = order.locate(images)
        assert ((numbers >= 0) & (numbers < sizes[shards])).all()
        assert not seen[images].any()
        seen[images] = True
        if step == steps // 2:
            resumed = ShardOrder(sizes)
            assert np.array_equal(resumed.batch(step, 0, ranks, batch), images[:batch])
    assert seen.all()

"""Simulates the index and the order of shards with 100 million images, without a list of all images.

The index has the number of images of each shard. An epoch shuffles the shards, and then the images of each
window of consecutive shards. So a rank needs the images of one window, and reads from few shards at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_WINDOW = 64  # shards whose images are shuffled together


@dataclass(frozen=True)
class ShardOrder:
    """Order of an epoch, which depends on the seed and the epoch, but not on the number of ranks.

    Attributes:
        sizes: [S] number of images of each shard.
        seed: Seed of the order.
        epoch: Number of the epoch.
    """

    sizes: NDArray[np.int64]
    seed: int = 0
    epoch: int = 0

    def windows(self) -> int:
        """Returns the number of windows."""
        return -(-len(self.sizes) // _WINDOW)

    def window(self, number: int) -> NDArray[np.int64]:
        """Returns the images of a window in their order, as positions in the data set."""
        shards = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.sizes))
        starts = np.cumsum(self.sizes) - self.sizes
        chosen = shards[number * _WINDOW : (number + 1) * _WINDOW]
        images = np.concatenate([starts[shard] + np.arange(self.sizes[shard]) for shard in chosen])
        return np.random.default_rng([self.seed, self.epoch, number]).permutation(images)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns shard and number in the shard of each position."""
        ends = np.cumsum(self.sizes)
        shards = np.searchsorted(ends, positions, side="right")
        return shards, positions - (ends - self.sizes)[shards]


def check_order(count: int, ranks: int, batch: int = 256) -> None:
    """Checks that the ranks together read each image once, and the same in each step with half the ranks.

    Raises:
        AssertionError: They do not.
    """
    sizes = np.full(-(-count // 10_000), 10_000, np.int64)
    sizes[-1] = count - sizes[:-1].sum()
    order = ShardOrder(sizes)
    seen = np.zeros(count, np.bool_)
    for number in range(order.windows()):
        images = order.window(number)
        assert not seen[images].any()
        seen[images] = True
        step = images[: ranks * batch]
        parts = [step[rank * batch : (rank + 1) * batch] for rank in range(ranks)]
        halves = [step[rank * 2 * batch : (rank + 1) * 2 * batch] for rank in range(ranks // 2)]
        assert np.array_equal(np.concatenate(parts), np.concatenate(halves))
        shards, numbers = order.locate(step)
        assert ((numbers >= 0) & (numbers < sizes[shards])).all()
    assert seen.all()

"""What one rank wants while it trains becomes what all ranks do."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import paddle
from paddle import distributed
from paddle.distributed.communication.group import Group

from ppcls.runtime import Runtime

_SECONDS = 0.2  # between two exchanges, about
_MOST_CALLS = 8


class Wishes:
    """Gives all ranks the wishes of each, at the same point of their work.

    Every rank calls `of_all` at the same points, between two updates. At some of these calls, the same ones
    on every rank, they exchange their wishes over gloo. That is between hosts, a third of a millisecond,
    and waits for no GPU. Rank 0's clock says at which calls.

    Args:
        runtime: Of this rank; all must make one at the same time.
        kinds: How many kinds of wishes there are.
    """

    def __init__(self, runtime: Runtime, kinds: int) -> None:
        self._runtime = runtime
        self._group = _gloo_group() if runtime.world > 1 else None
        self._wanted = [0] * kinds
        self._left, self._gap, self._last = 1, 1, time.monotonic()

    def of_all(self, wanted: Sequence[int]) -> list[int]:
        """Returns the largest of all ranks' wishes since the last exchange; zeros between exchanges.

        Args:
            wanted: This rank's wishes, each >= 0.
        """
        if self._group is None:
            return list(wanted)
        self._wanted = [max(pair) for pair in zip(self._wanted, wanted, strict=True)]
        self._left -= 1
        if self._left:
            return [0] * len(self._wanted)
        tensor = paddle.to_tensor([*self._wanted, self._next_gap()], dtype="int64", place=paddle.CPUPlace())
        with self._runtime.progress.during("waiting for all processes between two batches"):
            distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        agreed: list[int] = np.asarray(tensor.numpy()).tolist()
        self._left = self._gap = agreed.pop()
        self._wanted = [0] * len(agreed)
        return agreed

    def _next_gap(self) -> int:
        """Returns after how many calls rank 0 wants the next exchange; others leave it to that one."""
        if not self._runtime.is_main:
            return 0
        now = time.monotonic()
        a_call, self._last = (now - self._last) / self._gap, now
        return max(1, min(_MOST_CALLS, int(_SECONDS / max(a_call, 1e-6))))


def _gloo_group() -> Group:
    """Returns a group of all ranks over gloo: the default one on CPUs, else a new one.

    There is at most one such group a process. Groups of Paddle's meet under the same names in its store, so
    that ranks may find an earlier group's addresses there: three or more seldom connect for a second time.
    """
    if distributed.get_backend() == "GLOO":
        return distributed.get_group()
    return distributed.new_group(list(range(distributed.get_world_size())), backend="gloo")

"""Exchanges between the ranks of a run: JSON values, errors, requests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import distributed
from paddle.distributed.communication.group import Group

from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

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


def exchange(runtime: Runtime, told: Any) -> list[Any]:
    """Returns what every process tells, by rank; all of them have to come here.

    Args:
        runtime: Of this process.
        told: Anything that JSON can hold.
    """
    if runtime.world == 1:
        return [told]
    text = np.frombuffer(json.dumps(told).encode(), np.uint8)
    sizes = _gather(np.array([len(text)]))
    padded = np.zeros(max(int(size[0]) for size in sizes), np.uint8)
    padded[: len(text)] = text
    texts = zip(_gather(padded), sizes, strict=True)
    return [json.loads(each[: int(size[0])].tobytes()) for each, size in texts]


def _gather(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    gathered: list[paddle.Tensor] = []
    paddle.distributed.all_gather(gathered, paddle.to_tensor(array))
    return [each.numpy() for each in gathered]


@contextmanager
def together(runtime: Runtime) -> Iterator[None]:
    """Ends all processes where one can't go on, each with its reason, instead of leaving them waiting for it.

    Nothing within the block may wait for other processes; all of them have to come to its end.

    Raises:
        UserError: The block raised one, or an OSError, in another process.
    """
    error: UserError | OSError | None = None
    try:
        yield
    except (UserError, OSError) as caught:
        error = caught
    told = exchange(runtime, None if error is None else [socket.gethostname(), str(error)])
    if error is not None:
        raise error
    for rank, failed in enumerate(told):
        if failed is not None:
            host, text = failed
            raise UserError(f"rank {rank} on {host}: {text}")

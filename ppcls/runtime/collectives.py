"""Exchanges values, errors and requests between the ranks of a run."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import distributed
from paddle.distributed.communication.group import Group

from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

Array = NDArray[Any]

# Approximate seconds between two exchanges of requests. An exchange takes about 0.3 ms, so all exchanges
# together take about 0.15 % of the time of a run.
_INTERVAL = 0.2
_MAX_CALLS = 8  # maximum number of calls between two exchanges of requests


class RequestExchange:
    """Shares requests such as "save" and "stop", so that all ranks handle them at the same point of the run.

    All ranks must call `any_rank` at the same points, between two updates. Only some of these calls exchange
    requests. Rank 0 chooses them by its clock, so they are the same calls on every rank. The exchange uses
    gloo on the CPU, takes about 0.3 ms, and does not wait for a GPU.

    Args:
        runtime: Runtime of this rank. All ranks must create their exchange at the same point.
        kinds: Number of kinds of requests.
    """

    def __init__(self, runtime: Runtime, kinds: int) -> None:
        self._runtime = runtime
        self._group = _gloo_group() if runtime.world_size > 1 else None
        self._pending = [0] * kinds
        self._calls_left = 1
        self._calls_between = 1
        self._last = time.monotonic()

    def any_rank(self, requests: Sequence[int]) -> list[int]:
        """Returns, for each kind, the maximum over all ranks of the requests since the last exchange.

        Calls that do not exchange requests return zeros.

        Args:
            requests: Requests of this rank, one number >= 0 per kind.
        """
        if self._group is None:
            return list(requests)
        self._pending = [max(pair) for pair in zip(self._pending, requests, strict=True)]
        self._calls_left -= 1
        if self._calls_left:
            return [0] * len(self._pending)
        values = [*self._pending, self._calls_to_next()]
        tensor = paddle.to_tensor(values, dtype="int64", place=paddle.CPUPlace())
        with self._runtime.progress.during("waiting for all processes between two batches"):
            distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        agreed: list[int] = np.asarray(tensor.numpy()).tolist()
        self._calls_left = self._calls_between = agreed.pop()
        self._pending = [0] * len(agreed)
        return agreed

    def _calls_to_next(self) -> int:
        """Returns the number of calls until the next exchange on rank 0, and 0 on other ranks."""
        if not self._runtime.is_main:
            return 0
        now = time.monotonic()
        per_call = (now - self._last) / self._calls_between
        self._last = now
        return max(1, min(_MAX_CALLS, int(_INTERVAL / max(per_call, 1e-6))))


def _gloo_group() -> Group:
    """Returns a gloo group of all ranks: on CPUs the default group, on GPUs a new group.

    A process must create at most one such group. Paddle uses the same names in its store for all groups, so
    ranks of a second group may read the addresses of the first, and then often fail to connect.
    """
    if distributed.get_backend() == "GLOO":
        return distributed.get_group()
    return distributed.new_group(list(range(distributed.get_world_size())), backend="gloo")


def all_gather_json(runtime: Runtime, value: Any) -> list[Any]:
    """Returns the values of all ranks, in order of rank. All ranks must call it.

    Args:
        value: Value of this rank, which JSON must support.
    """
    if runtime.world_size == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    return [json.loads(part.tobytes()) for part in gather_rows(text[:, None], runtime.world_size)]


def gather_rows(rows: Array, world: int) -> list[Array]:
    """Returns one array per rank with its rows, in order of rank. All ranks must call it.

    Args:
        rows: Rows of this rank, [N, D]. N may differ between ranks. D may be 0 on a rank without rows.
        world: Number of ranks.
    """
    if world == 1:
        return [rows]
    counts, widths = np.stack(all_gather(np.array(rows.shape, np.int64), world)).T
    padded = np.zeros((counts.max(), widths.max()), rows.dtype)
    padded[: len(rows), : rows.shape[1]] = rows
    if not padded.size:  # Gloo would end the process with a division by zero
        return [padded[:count] for count in counts]
    return [part[:count] for part, count in zip(all_gather(padded, world), counts, strict=True)]


def all_gather(values: Array | paddle.Tensor, world: int) -> list[Array]:
    """Returns the values of all ranks, in order of rank. All ranks must call it.

    Args:
        values: Values of this rank, with the same shape and dtype on all ranks.
        world: Number of ranks.
    """
    tensor = values if isinstance(values, paddle.Tensor) else paddle.to_tensor(values)
    gathered: list[paddle.Tensor] = []
    if world == 1:
        gathered.append(tensor)
    else:
        distributed.all_gather(gathered, tensor)
    return [np.asarray(part.numpy()) for part in gathered]


def all_reduce(values: Array | paddle.Tensor, world: int, *, maximum: bool = False) -> Array:
    """Returns the elementwise sums, or maxima, of the values of all ranks. All ranks must call it.

    Args:
        values: Values of this rank. A tensor is changed in place.
        world: Number of ranks.
        maximum: Whether to compute maxima.
    """
    tensor = values if isinstance(values, paddle.Tensor) else paddle.to_tensor(values)
    if world > 1:
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX if maximum else distributed.ReduceOp.SUM)
    return np.asarray(tensor.numpy())


@contextmanager
def fail_together(runtime: Runtime) -> Iterator[None]:
    """Returns a context that raises an error on all ranks if the block fails on one of them.

    No rank then waits for a failed rank. All ranks must enter the block, and the code in the block must not
    wait for other ranks.

    Raises:
        UserError: The block raised `UserError` or OSError on another rank.
    """
    error: UserError | OSError | None = None
    try:
        yield
    except (UserError, OSError) as caught:
        error = caught
    failures = all_gather_json(runtime, None if error is None else [socket.gethostname(), str(error)])
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            node, text = failure
            raise UserError(f"rank {rank} on {node}: {text}")

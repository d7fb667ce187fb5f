"""Limits of one request and of all requests together, and the errors of requests that exceed them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass


class BusyError(Exception):
    """Raised if the server has no capacity for a request."""


class RequestError(Exception):
    """Raised if a request is invalid or exceeds a limit.

    Args:
        status: HTTP status.
        reason: Explanation for the client.
        images: Errors of single images, keyed by the index of the image in the request.
    """

    def __init__(self, status: int, reason: str, images: dict[int, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.images = images or {}


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one request.

    Attributes:
        max_bytes: Maximum size of the body in bytes.
        max_images: Maximum number of images.
        timeout: Maximum seconds for receiving the body. The same limit applies to answering the request
            after that.
    """

    max_bytes: int
    max_images: int
    timeout: float


class AdmissionLimit:
    """Limits the total amount of a resource that all requests use. Further requests are rejected, not queued.

    All requests of one client together may use at most half of the resource, so that one client cannot block
    the others. A single request may use more than that.

    Args:
        size: Maximum amount.
        unit: Unit of ``size``, for the error message.
    """

    def __init__(self, size: int, unit: str) -> None:
        self.size = size
        self._unit = unit
        self._used = Counter[str]()

    @property
    def used(self) -> int:
        """Amount that is in use."""
        return self._used.total()

    @contextmanager
    def acquire(self, count: int, client: str = "") -> Iterator[None]:
        """Uses ``count`` units until the end of the ``with`` block.

        Args:
            count: Number of units.
            client: Address of the client.

        Raises:
            BusyError: Fewer than ``count`` units are free, or the client uses its share already.
        """
        share = self.size // 2
        mine = self._used[client]
        if self.used + count > self.size:
            raise BusyError(
                f"the server is busy: {self.used} of {self.size} {self._unit} are in use; try again later"
            )
        if mine and mine + count > share:
            raise BusyError(
                f"the server is busy: {mine} {self._unit} of this client are in use, of at most {share}; "
                "try again later"
            )
        self._used[client] += count
        try:
            yield
        finally:
            self._used[client] -= count
            if not self._used[client]:
                del self._used[client]


class FairSlots:
    """Limits the number of tasks that run at once. While tasks wait, the clients take turns.

    Args:
        count: Number of tasks that run at once.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def acquire(self, client: str) -> AsyncIterator[None]:
        """Waits for a slot, and uses it until the end of the block.

        Args:
            client: Address of the client.
        """
        await self._wait(client)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if (
                not turn.cancelled()
            ):  # the slot was assigned, and the task was cancelled before it used the slot
                self._release()
            raise

    def _release(self) -> None:
        while self._waiting:
            client, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns  # behind all other clients
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

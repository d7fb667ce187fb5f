"""Limits of a request and of all requests together, and the errors that report them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class BusyError(Exception):
    """The server has no capacity left for a request."""


class RequestError(Exception):
    """A request that the server cannot answer.

    Args:
        status: HTTP status.
        reason: Explanation for the client.
        images: What is wrong with single images, by their index in the request.
    """

    def __init__(self, status: int, reason: str, images: dict[int, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.images = status, reason, images or {}


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one request.

    Attributes:
        max_bytes: Size of its body.
        max_images: Number of images in it.
        timeout: Seconds for the body to arrive, and again for the answer.
    """

    max_bytes: int
    max_images: int
    timeout: float


class AdmissionLimit:
    """Limits what all requests together may use. Requests beyond the limit are rejected instead of queued.

    Args:
        size: The limit.
        unit: Unit of ``size``, for the message.

    Attributes:
        used: Amount that is in use.
    """

    def __init__(self, size: int, unit: str) -> None:
        self.size, self._unit, self.used = size, unit, 0

    @contextmanager
    def acquire(self, count: int) -> Iterator[None]:
        """Uses ``count`` units until the block ends.

        Raises:
            BusyError: If they do not fit.
        """
        if self.used + count > self.size:
            raise BusyError(
                f"the server is busy: {self.used} of {self.size} {self._unit} are in use; try again"
            )
        self.used += count
        try:
            yield
        finally:
            self.used -= count

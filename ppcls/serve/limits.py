"""Limits of one request and of all requests together, and the errors of requests that exceed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

    Args:
        size: Maximum amount.
        unit: Unit of ``size``, for the error message.

    Attributes:
        used: Amount that is in use.
    """

    def __init__(self, size: int, unit: str) -> None:
        self.size = size
        self._unit = unit
        self.used = 0

    @contextmanager
    def acquire(self, count: int) -> Iterator[None]:
        """Uses ``count`` units until the end of the ``with`` block.

        Raises:
            BusyError: Fewer than ``count`` units are free.
        """
        if self.used + count > self.size:
            raise BusyError(
                f"the server is busy: {self.used} of {self.size} {self._unit} are in use; try again later"
            )
        self.used += count
        try:
            yield
        finally:
            self.used -= count

"""So much at once, and no more: what does not fit is refused instead of being kept waiting."""

from __future__ import annotations

from types import TracebackType


class BusyError(Exception):
    """There is too little room."""


class Room:
    """Counts what is inside.

    Args:
        size: Of all that is inside, at most.
        what: Names it in the refusal.

    Attributes:
        taken: Of it, now.
    """

    def __init__(self, size: int, what: str) -> None:
        self.size, self._what, self.taken = size, what, 0

    def take(self, count: int) -> None:
        """Lets ``count`` in.

        Raises:
            BusyError: There is too little room.
        """
        if self.taken + count > self.size:
            raise BusyError(f"too busy: {self.taken} of at most {self.size} {self._what} are in work")
        self.taken += count

    def leave(self, count: int) -> None:
        """Lets ``count`` out."""
        self.taken -= count


class Share:
    """What one request has of a `Room`, until its block ends."""

    def __init__(self, room: Room) -> None:
        self._room, self._taken = room, 0

    def take(self, count: int) -> None:
        """Takes ``count`` more; raises `BusyError` as the room does."""
        self._room.take(count)
        self._taken += count

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.leave(self._taken)
        self._taken = 0

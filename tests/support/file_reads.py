"""Counts how often files are opened."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_counters: list[Counter[str]] = []


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    # A second event without a mode follows if `open` has an opener.
    is_open = event == "open" and arguments[1] is not None
    if is_open and _counters and isinstance(arguments[0], (str, os.PathLike)):
        path = os.path.realpath(arguments[0])
        for counter in _counters:
            counter[path] += 1


sys.addaudithook(_count)  # Python has no function that removes a hook


@contextmanager
def counted_opens() -> Iterator[Counter[str]]:
    """Yields the number of times that this process opens each file within the block, by real path."""
    counter: Counter[str] = Counter()
    _counters.append(counter)
    try:
        yield counter
    finally:
        _counters.remove(counter)

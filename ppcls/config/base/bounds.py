"""Bounds of numbers in configs and in options. Does not import pydantic, so that ``--help`` is fast."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Bounds of an ``int`` or ``float``: greater than, greater or equal, less than, less or equal."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def describe(self, source: type) -> str:
        """Returns the accepted values as text, such as ``an integer > 0``."""
        limits = [
            f"{sign} {limit:.12g}"
            for sign, limit in ((">", self.gt), (">=", self.ge), ("<", self.lt), ("<=", self.le))
            if limit is not None
        ]
        noun = "an integer" if source is int else "a number"
        return " ".join([noun, " and ".join(limits)]).strip()

    def holds(self, value: float) -> bool:
        """Returns whether a number is finite and within the bounds."""
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
            and abs(value) <= sys.float_info.max
        )

"""Finds integers in programs that are not negative, because they follow from the sizes of images.

Networks that resize images in ``inference.json`` or ``inference.pdmodel`` divide by such integers. For other
divisors that are not constants, the division could end the process, see `numbers.check_divisor`. Paddle
itself reports a divisor of 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1
_LARGEST_SIDE = INT32  # of an image
_OF_THE_FIRST = frozenset({"floor_divide", "gather", "reshape", "slice", "squeeze", "unsqueeze"})
_OF_ALL = frozenset({"combine", "concat", "maximum", "stack"})


class Sizes:
    """Knows the largest possible values of integers that are not negative.

    Operators are added in their order. An integer whose largest value does not fit into its data type is not
    known, because it could become negative.
    """

    def __init__(self) -> None:
        self._images: set[Hashable] = set()
        self._largest: dict[Hashable, int] = {}
        self._limits: dict[Hashable, int] = {}

    def add_image(self, value: Hashable) -> None:
        """Adds an input of the program."""
        self._images.add(value)

    def add_constants(self, value: Hashable, numbers: Sequence[float], limit: int) -> None:
        """Adds constants.

        Args:
            value: Name or number of the constants.
            numbers: Their values.
            limit: Largest value of their data type, `INT32` or `INT64`.
        """
        if numbers and all(0 <= number <= limit for number in numbers):
            self._largest[value] = int(max(numbers))
            self._limits[value] = limit

    def add_result(
        self, kind: str, operands: Sequence[Hashable], result: Hashable, limit: int | None = None
    ) -> None:
        """Adds the result of an operator.

        Args:
            kind: Name of the operator, such as ``add``.
            operands: Operands in their order.
            result: Name or number of the result.
            limit: Largest value of its data type; None if it is that of the operands.
        """
        first = operands[0] if operands else None
        if kind == "cast" and first in self._images:
            self._images.add(result)
        elif kind == "shape" and first in self._images:
            self.add_constants(result, [_LARGEST_SIDE], limit or INT32)
        elif all(operand in self._largest for operand in operands if kind not in _OF_THE_FIRST):
            self._compute(kind, operands, result, limit)

    def _compute(self, kind: str, operands: Sequence[Hashable], result: Hashable, limit: int | None) -> None:
        first = operands[0] if operands else None
        if first not in self._largest or (kind == "floor_divide" and operands[1] not in self._largest):
            return
        values = [self._largest[operand] for operand in operands if operand in self._largest]
        smallest_limit = min(self._limits[operand] for operand in operands if operand in self._limits)
        if kind in _OF_THE_FIRST or kind == "cast":
            largest = values[0]
        elif kind in _OF_ALL:
            largest = max(values)
        elif kind == "minimum":
            largest = min(values)
        elif kind == "add":
            largest = sum(values)
        elif kind == "multiply":
            largest = prod(values)
        else:
            return
        self.add_constants(result, [largest], smallest_limit if limit is None else limit)

    def __contains__(self, value: Hashable) -> bool:
        """Returns whether a value is known not to be negative."""
        return value in self._largest

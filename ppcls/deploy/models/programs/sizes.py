"""Finds integers in programs that are not negative, because they follow from the sizes of images.

Networks that resize images in ``inference.json`` or ``inference.pdmodel`` divide by such integers. For other
divisors that are not constants, the division could end the process, see `numbers.check_divisor`. Paddle
itself reports a divisor of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from operator import itemgetter

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1
_LARGEST_SIDE = INT32  # of an image
_FIRST = itemgetter(0)
# How the largest result follows from the largest operands
_RULES: dict[str, Callable[[list[int]], int]] = {
    "add": sum,
    "cast": _FIRST,
    "combine": max,
    "concat": max,
    "floor_divide": _FIRST,
    "gather": _FIRST,
    "maximum": max,
    "minimum": min,
    "multiply": prod,
    "reshape": _FIRST,
    "slice": _FIRST,
    "squeeze": _FIRST,
    "stack": max,
    "unsqueeze": _FIRST,
}
# Operators whose other operands are positions, axes or a shape, which do not change the values
_SELECTIONS = frozenset({"gather", "reshape", "slice", "squeeze", "unsqueeze"})


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
        image = bool(operands) and operands[0] in self._images
        if image and kind == "cast":
            self._images.add(result)
        elif image and kind == "shape":
            self.add_constants(result, [_LARGEST_SIDE], limit or INT32)
        elif kind in _RULES and operands:
            values = operands[:1] if kind in _SELECTIONS else operands
            if all(value in self._largest for value in values):
                largest = _RULES[kind]([self._largest[value] for value in values])
                of_operands = min(self._limits[value] for value in values)
                self.add_constants(result, [largest], of_operands if limit is None else limit)

    def __contains__(self, value: Hashable) -> bool:
        """Returns whether a value is known not to be negative."""
        return value in self._largest

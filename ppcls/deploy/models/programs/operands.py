"""Operands of the operators of ``inference.json`` that must be constants, see `numbers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ppcls.deploy.models.programs.numbers import check_divisor, check_numbers
from ppcls.deploy.models.programs.parts import ProgramError, StoredTensor
from ppcls.deploy.models.programs.sizes import INT32, INT64, Sizes

_NONE = StoredTensor("", "", ())
_DIVISIONS = frozenset({"divide", "floor_divide", "remainder"})
_INTEGERS = frozenset({"int8", "uint8", "int16", "int32", "int64"})
_LIMITS = {"int32": INT32, "int64": INT64}
# Operands that are numbers, by their positions
_NAMED: dict[str, dict[int, str]] = {
    "eye": {0: "k", 1: "k"},
    "pool2d": {1: "kernel_size"},
    "set_value": {1: "starts", 2: "ends", 3: "steps"},
    "slice": {1: "starts", 2: "ends"},
    "split": {1: "sections"},
    "strided_slice": {1: "starts", 2: "ends", 3: "strides"},
    "topk": {1: "k"},
}
# Computed positions are necessary to cut out what depends on the size of an image. Paddle limits them.
_MAY_BE_COMPUTED = frozenset({"starts", "ends"})


class Operands:
    """Knows which values of a program are constants, while its operators are checked in their order."""

    def __init__(self) -> None:
        self._constants: dict[int, tuple[float, ...]] = {}
        self._lengths: dict[int, int] = {}  # of lists of values
        self._tensors: dict[int, StoredTensor] = {}
        self._relied_on: dict[int, str] = {}  # constants that were checked, with the name of an operator
        self._changeable: set[int] = set()  # values that an operator can change, or can give another name
        self._sizes = Sizes()
        self._divides_by_size = ""  # name of an operator
        self._changes_integers = ""  # name of an operator that works in place on integers

    def define(self, number: int, tensor: StoredTensor) -> None:
        """Adds a tensor.

        Args:
            number: Number of the value.
            tensor: Type of the value. When an operator reads it, Paddle compares the data types.
        """
        self._tensors[number] = tensor

    def add_list(self, number: int, length: int) -> None:
        """Adds a list of values."""
        self._lengths[number] = length

    def check(
        self,
        name: str,
        operands: Sequence[int],
        results: Sequence[int],
        attributes: Mapping[str, Sequence[float]],
        in_place: bool,
    ) -> None:
        """Checks the numbers of an operator.

        Args:
            name: Name of the operator, such as ``1.relu``.
            operands: Numbers of its operands; 0 for none.
            results: Numbers of its results.
            attributes: Numbers in its attributes.
            in_place: Whether it changes an operand.

        Raises:
            ProgramError: See `check_numbers` and `check_divisor`.
        """
        kind = name.partition(".")[2]
        numbers = dict(attributes)
        checked: set[int] = set()
        for position, key in _NAMED.get(kind, {}).items() if name != "0.split" else ():
            operand = operands[position]
            values = self._constants.get(operand)
            if values is not None:
                numbers[key] = (*numbers.get(key, ()), *values) if key == "k" else values
                checked.add(position)
                self._relied_on[operand] = name
            elif key not in _MAY_BE_COMPUTED:
                raise ProgramError(f"operator {name!r}: expected a constant as {key}, found a tensor")
            elif operand in self._lengths:
                numbers[key] = (1,) * self._lengths[operand]
            elif kind != "slice":
                raise ProgramError(f"operator {name!r}: expected a list as {key}, found a tensor")
        types = [self._tensors.get(operand, _NONE) for operand in operands]
        dtypes = [tensor.dtype for tensor in types]
        if kind in _DIVISIONS and not _INTEGERS.isdisjoint(dtypes):
            if kind != "divide" and operands[1] not in self._constants and operands[1] in self._sizes:
                self._divides_by_size = name
            else:
                check_divisor(name, dtypes[1], self._constants.get(operands[1]))
                self._relied_on[operands[1]] = name
            checked.add(1)
        if kind == "pow" and dtypes[0] in _INTEGERS and min(numbers["y"]) < 0:
            raise ProgramError(f"operator {name!r}: expected no negative exponent of integers")
        check_numbers(kind, numbers, [len(tensor.shape) for tensor in types])
        self._check_lists(name, operands, results, numbers)
        self._changeable.update(operand for at, operand in enumerate(operands) if at not in checked)
        self._add_constants(kind, results, numbers)
        if in_place and not _INTEGERS.isdisjoint(dtypes):
            self._changes_integers = name
        if results:
            self._add_size(kind, operands, results[0])

    def _add_size(self, kind: str, operands: Sequence[int], result: int) -> None:
        tensor = self._tensors.get(result)
        limit = None if tensor is None else _LIMITS.get(tensor.dtype, 0)
        if kind == "data":
            self._sizes.add_image(result)
        elif result in self._constants:
            self._sizes.add_constants(result, self._constants[result], limit or 0)
        else:
            self._sizes.add_result(kind.removesuffix("64"), operands, result, limit)

    def _check_lists(
        self,
        name: str,
        operands: Sequence[int],
        results: Sequence[int],
        numbers: Mapping[str, Sequence[float]],
    ) -> None:
        """Checks that an operator returns as many tensors as its lists of results are long."""
        expected: float | None = None
        count = self._lengths.get(results[0]) if results else None
        if name == "0.split":
            expected, count = self._lengths.get(operands[0]), len(results)
        elif name == "0.combine":
            expected = len(operands)
        elif name == "1.split":
            expected = len(numbers["sections"])
        elif name in ("1.split_with_num", "1.unstack"):
            (expected,) = numbers["num"]
        elif name == "1.unbind":
            shape = self._tensors.get(operands[0], _NONE).shape
            (axis,) = numbers["axis"]
            expected = shape[int(axis)] if -len(shape) <= axis < len(shape) else None
        elif name == "1.meshgrid":
            expected = self._lengths.get(operands[0])
        elif count is None:
            return
        if expected is None or expected != count:
            raise ProgramError(f"operator {name!r}: damaged: expected {expected} results, found {count}")

    def _add_constants(
        self, kind: str, results: Sequence[int], numbers: Mapping[str, Sequence[float]]
    ) -> None:
        if kind in ("full", "full_int_array"):
            self._constants[results[0]] = tuple(numbers["value"])
        elif kind == "assign_value":
            self._constants[results[0]] = tuple(numbers["values"])

    def finish(self) -> None:
        """Checks that no operator can change a constant or a size after its check.

        Raises:
            ProgramError: One could.
        """
        if self._divides_by_size and self._changes_integers:
            raise ProgramError(
                f"operator {self._divides_by_size!r}: the operator {self._changes_integers!r}, which works "
                "in place, could change its divisor"
            )
        for number, name in self._relied_on.items():
            if number in self._changeable:
                raise ProgramError(
                    f"operator {name!r}: another operator uses its constant, and could change it"
                )

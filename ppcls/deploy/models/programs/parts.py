"""What both formats of programs have in common: parameters, errors, and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ppcls.zoo import read_table

MAX_PROGRAM_BYTES = 32 << 20  # the programs of all architectures of the zoo have less than 4 MB
MAX_RANK = 32
_MAX_CONSTANT = 1 << 28  # elements
_GEOMETRY = frozenset({"dilations", "output_padding", "paddings", "strides"})
_MAX_GEOMETRY = 1024  # networks use less than 100
_MAX_NAME = 1024  # characters
_WORD = re.compile(r"[\w.()-]{0,256}")  # such as NCHW, or the name of an input, but not a path
_TABLE = Path(__file__).with_name("operators.yaml")


class ProgramError(ValueError):
    """Raised for a program that is damaged, or that does more than compute a network."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose values are in the file of parameters.

    Attributes:
        name: Name of the tensor.
        dtype: Data type, such as ``float32``.
        shape: Shape of the tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """An operator of the table.

    Attributes:
        forms: Numbers of operands and results, such as ``2 -> 1``, or names of the inputs and outputs.
        attributes: Kinds of the attributes, such as ``i32s`` or ``f32|f64``. Optional ones end in ``?``.
    """

    forms: frozenset[str]
    attributes: Mapping[str, str]


@cache
def _table(part: str) -> dict[str, Operator]:
    tree = read_table(_TABLE)[part]
    return {
        name: Operator(frozenset(entry["forms"]), entry.get("attributes", {})) for name, entry in tree.items()
    }


def find_operator(part: str, name: str) -> Operator:
    """Returns an operator of the table.

    Args:
        part: Part of the table, ``pir`` or ``legacy``.
        name: Name of the operator.

    Raises:
        ProgramError: The table does not contain it, so it could do more than compute.
    """
    operator = _table(part).get(name)
    if operator is None:
        raise ProgramError(
            f"the operator {name[:64]!r} is not one of those that networks consist of; it could read or "
            "write files, or run code"
        )
    return operator


def check_kinds(operator: str, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Checks that an operator has the attributes of the table.

    Args:
        operator: Name of the operator, for the message.
        found: Kind of each attribute of the operator.
        expected: See `Operator.attributes`.

    Raises:
        ProgramError: An attribute is missing, unknown or of another kind.
    """
    for name, kinds in expected.items():
        if name not in found and not kinds.endswith("?"):
            raise ProgramError(f"operator {operator!r}: damaged: the attribute {name!r} is missing")
    for name, kind in found.items():
        check_kind(operator, name, kind, expected.get(name, ""))


def check_kind(operator: str, name: str, kind: str, expected: str) -> None:
    """Checks the kind of an attribute.

    Args:
        operator: Name of the operator, for the message.
        name: Name of the attribute.
        kind: Kind of the attribute.
        expected: Kinds in the table, see `Operator.attributes`.

    Raises:
        ProgramError: The attribute is of another kind.
    """
    kinds = expected.rstrip("?").split("|")
    # The kind of the elements of an empty list is unknown, in the program and in the table.
    lists = [known for known in kinds if known == "list" or known.endswith("s")]
    if kind not in kinds and not (lists and (kind == "list" or (kind.endswith("s") and "list" in kinds))):
        raise ProgramError(
            f"operator {operator!r}: the attribute {name[:64]!r} of the kind {kind!r} is not supported"
        )


def check_text(operator: str, name: str, text: object) -> None:
    """Checks an attribute that contains text.

    Raises:
        ProgramError: The text is not a word, so it could be a path, an address or code.
    """
    if not isinstance(text, str) or not _WORD.fullmatch(text):
        raise ProgramError(
            f"operator {operator!r}: expected a word in the attribute {name[:64]!r}, found {str(text)[:64]!r}"
        )


def check_name(name: str) -> None:
    """Checks the name of a parameter.

    Raises:
        ProgramError: The name is too long, or contains control characters.
    """
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise ProgramError(f"expected the name of a parameter, found {name[:64]!r}")


def check_constant(operator: str, shape: Sequence[float]) -> None:
    """Checks the shape of a tensor that an operator creates from its attributes.

    Raises:
        ProgramError: The tensor is too large.
    """
    if len(shape) > MAX_RANK or math.prod(max(abs(side), 1) for side in shape) > _MAX_CONSTANT:
        raise ProgramError(
            f"operator {operator!r}: expected a tensor of at most {_MAX_CONSTANT:,} elements, got the "
            f"shape {str(list(shape))[:80]}"
        )


def check_geometry(operator: str, name: str, numbers: Iterable[float]) -> None:
    """Checks attributes by which convolution, pooling and padding can enlarge a feature map.

    Args:
        operator: Name of the operator, for the message.
        name: Name of the attribute.
        numbers: Numbers of the attribute.

    Raises:
        ProgramError: A number is too large. A padding of a million pixels needs terabytes, or hours.
    """
    if name not in _GEOMETRY:
        return
    for number in numbers:
        if abs(number) > _MAX_GEOMETRY:
            raise ProgramError(
                f"operator {operator!r}: attribute {name!r}: expected numbers of at most {_MAX_GEOMETRY:,}, "
                f"found {str(number)[:20]}"
            )


def check_values(operator: str, shape: Sequence[int], *lengths: int) -> None:
    """Checks that an operator has as many values as the tensor that it creates has elements.

    Args:
        operator: Name of the operator, for the message.
        shape: Shape of the tensor.
        lengths: Numbers of the values in attributes that are not empty.

    Raises:
        ProgramError: It has more or fewer values.
    """
    if any(side < 0 for side in shape) or set(lengths) != {math.prod(shape)}:
        raise ProgramError(
            f"operator {operator!r}: damaged: {lengths} values for the shape {list(shape)[:9]}"
        )

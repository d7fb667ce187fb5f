"""Checks numbers in programs that Paddle uses without a check of its own.

Its kernels divide by some attributes, and compute addresses from others. With a stride of 0 or an axis of
a million, they end the process, or write to memory that does not belong to the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ppcls.deploy.models.programs.parts import MAX_RANK, ProgramError

_POSITIVE = frozenset(
    {"dilations", "groups", "kernel_size", "kernel_sizes", "ksize", "strides"}
    | {"Repeats", "downscale_factor", "k", "repeats", "upscale_factor"}
)
_AXES = frozenset(
    {"axes", "axis", "begin_norm_axis", "decrease_axes", "decrease_axis", "dim", "none_axes", "perm"}
    | {"input_dim_idx", "output_dim_idx", "start_axis", "stop_axis"}
)
# Attributes of slices that have one number per axis.
_PER_AXIS = ("starts", "ends", "strides", "steps")
_SLICES = frozenset({"slice", "strided_slice", "set_value"})
_LARGEST_DIVISOR = {"int8": (1 << 7) - 1, "uint8": (1 << 7) - 1, "int16": (1 << 15) - 1}
_LARGEST = (1 << 31) - 1


def check_numbers(operator: str, numbers: Mapping[str, Sequence[float]], ranks: Sequence[int] = ()) -> None:
    """Checks the numbers of an operator.

    Args:
        operator: Name of the operator, without the dialect.
        numbers: Numbers of each attribute, and of each operand that is a constant.
        ranks: Number of axes of each operand.

    Raises:
        ProgramError: A number is outside of the range that networks use, or two lists differ in length.
    """
    for name, values in numbers.items():
        if name in _POSITIVE and operator not in _SLICES:
            _check_range(operator, name, values, 1, _LARGEST)
        elif name in _AXES:
            _check_range(operator, name, values, -MAX_RANK, MAX_RANK - 1)
    if operator in ("split_with_num", "unstack"):
        _check_range(operator, "num", numbers.get("num", ()), 1, _LARGEST)
    if operator == "repeat_interleave":  # a size that differs from the computed one
        _check_range(operator, "output_size", numbers.get("output_size", ()), -1, -1)
    if operator in _SLICES:
        if 0 in numbers.get("strides", ()) or 0 in numbers.get("steps", ()):
            raise ProgramError(f"operator {operator!r}: a stride is 0")
        lengths = {name: len(numbers[name]) for name in ("axes", *_PER_AXIS) if name in numbers}
        if len(set(lengths.values())) > 1 or len(set(numbers["axes"])) != len(numbers["axes"]):
            counts = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise ProgramError(f"operator {operator!r}: damaged: {counts}, or an axis twice")
        if ranks:
            _check_range(operator, "axes", numbers["axes"], -ranks[0], ranks[0] - 1)
    if operator == "expand_as" and ranks and len(numbers["target_shape"]) < max(ranks):
        raise ProgramError(
            f"operator {operator!r}: expected at least {max(ranks)} axes, "
            f"found {len(numbers['target_shape'])}"
        )


def check_divisor(operator: str, dtype: str, values: Sequence[float] | None) -> None:
    """Checks the divisor of a division of integers.

    Args:
        operator: Name of the operator.
        dtype: Data type of the divisor.
        values: Values of the divisor; None if they are not constants of the program.

    Raises:
        ProgramError: The division could end the process.
    """
    largest = _LARGEST_DIVISOR.get(dtype, _LARGEST)
    if values is None or not values or not all(1 <= value <= largest for value in values):
        shown = "a tensor" if values is None else str(list(values))[:80]
        raise ProgramError(
            f"operator {operator!r}: expected constant divisors from 1 to {largest:,} for integers, "
            f"found {shown}"
        )


def _check_range(operator: str, name: str, values: Sequence[float], smallest: float, largest: float) -> None:
    for value in values:
        if not smallest <= value <= largest:
            raise ProgramError(
                f"operator {operator!r}: attribute {name!r}: expected numbers from {smallest:,} to "
                f"{largest:,}, found {str(value)[:20]}"
            )

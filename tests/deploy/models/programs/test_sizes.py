"""Integers that are known not to be negative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.deploy.models.programs.sizes import INT32, INT64, Sizes

pytestmark = pytest.mark.hostile

OPERATIONS = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "subtract": np.subtract,
    "floor_divide": lambda x, y: x // y if y else x,  # Paddle reports a divisor of 0
    "cast": lambda x, _: x,
}
NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 1, 2, INT32, INT32 + 2, INT64, -INT64 - 1]), st.integers(-INT64 - 1, INT64)
)


@given(st.lists(st.integers(1, INT32), min_size=1, max_size=3), st.lists(NUMBERS, max_size=3), st.data())
def test_known_integers_are_never_negative(sides: list[int], constants: list[int], data: Any) -> None:
    sizes = Sizes()
    sizes.add_image("image")
    values = []
    for side in sides:
        sizes.add_result("shape", ["image"], len(values), INT64)
        values.append(np.int64(side))
    for constant in constants:
        sizes.add_constants(len(values), [constant], INT64)
        values.append(np.int64(constant))
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(sorted(OPERATIONS)))
        first, second = (data.draw(st.integers(0, len(values) - 1)) for _ in range(2))
        limit = data.draw(st.sampled_from([INT32, INT64]))
        operands = [first] if kind == "cast" else [first, second]
        sizes.add_result(kind, operands, len(values), limit)
        with np.errstate(over="ignore"):
            value = OPERATIONS[kind](values[first], values[second])
        values.append(
            np.int64(np.int32(value & 0xFFFFFFFF)) if limit == INT32 and len(values) in sizes else value
        )
        assert len(values) - 1 not in sizes or values[-1] >= 0


def test_usual_sizes_are_known() -> None:
    """Doubling the shorter side, and a scaled side: divisors of our exports with the preprocessing."""
    sizes = Sizes()
    sizes.add_image("x")
    sizes.add_result("cast", ["x"], "floats")
    sizes.add_result("shape", ["floats"], "shape", INT64)
    for side in ("height", "width"):
        sizes.add_result("slice", ["shape", "start", "end"], side, INT64)
    sizes.add_result("minimum", ["height", "width"], "shorter", INT64)
    sizes.add_result("add", ["shorter", "shorter"], "doubled", INT64)
    sizes.add_constants("72", [72], INT64)
    sizes.add_result("multiply", ["height", "72"], "scaled", INT64)
    sizes.add_result("floor_divide", ["scaled", "doubled"], "side", INT64)
    assert "doubled" in sizes
    assert "side" in sizes


def test_the_size_of_another_tensor_is_unknown() -> None:
    """An empty tensor can have a side of 2^62."""
    sizes = Sizes()
    sizes.add_image("x")
    sizes.add_result("expand", ["x"], "expanded", INT64)
    sizes.add_result("shape", ["expanded"], "shape", INT64)
    assert "shape" not in sizes

"""The budget of a pickle pays for each instruction, also for those that leave no value in the result."""

from __future__ import annotations

import pytest

from ppcls.weights.pickle_interpreter import PickleInterpreter, ReadBudget, RejectedFileError

LIMIT = 2_000_000  # operations of a new budget
NOTHING = b"N" * 100 + b"."  # pushes None a hundred times, and returns the last one


@pytest.mark.parametrize(("operations", "is_read"), [(100, False), (110, True)])
def test_each_instruction_reduces_the_budget(operations: int, is_read: bool) -> None:
    budget = ReadBudget(len(NOTHING))
    budget.charge(LIMIT - operations)
    if is_read:
        assert PickleInterpreter(budget).run(NOTHING) is None
    else:
        with pytest.raises(RejectedFileError, match="more than 2000000 instructions and values"):
            PickleInterpreter(budget).run(NOTHING)

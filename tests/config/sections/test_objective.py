"""Losses and metrics for one label per image."""

import pytest
from specs import section_problems

from ppcls.config.sections.objective import CELoss, TopkAcc


def test_celoss_checks_its_numbers():
    assert CELoss() == CELoss(weight=1.0, epsilon=None)
    assert CELoss.model_validate({"epsilon": 0.1, "weight": 2}).weight == 2.0
    found = section_problems(CELoss, {"epsilon": 1.0, "weight": "heavy"})
    assert found == {
        "epsilon": "expected a number >= 0 and < 1, got 1.0",
        "weight": "expected a number, got 'heavy'",
    }


@pytest.mark.parametrize(("topk", "values"), [(3, (3,)), ([1, 3], (1, 3))])
def test_topk_accepts_one_or_several_integers(topk, values):
    assert TopkAcc().topk == (1, 5)
    assert TopkAcc.model_validate({"topk": topk}).topk == values


@pytest.mark.parametrize("topk", [0, True, [1, 0], [1.5], [], [1, 1]])
def test_topk_other_values_are_reported(topk):
    (place,) = section_problems(TopkAcc, {"topk": topk})
    assert place.startswith("topk")

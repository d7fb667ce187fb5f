"""Losses for one label per image."""

from specs import section_problems

from ppcls.config.sections.objective import CELoss


def test_celoss_checks_its_numbers():
    assert CELoss() == CELoss(weight=1.0, epsilon=None)
    assert CELoss.model_validate({"epsilon": 0.1, "weight": 2}).weight == 2.0
    found = section_problems(CELoss, {"epsilon": 1.0, "weight": "heavy"})
    assert found == {
        "epsilon": "expected a number >= 0 and < 1, got 1.0",
        "weight": "expected a number, got 'heavy'",
    }

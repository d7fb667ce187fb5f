import pytest
from pydantic import ValidationError

from ppcls.config.sections.objective import CELoss, TopkAcc


def problem(spec, **fields):
    with pytest.raises(ValidationError) as caught:
        spec.model_validate(fields)
    (error,) = caught.value.errors()
    return ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")


def test_celoss():
    assert CELoss() == CELoss(weight=1.0, epsilon=None)
    assert CELoss.model_validate({"epsilon": 0.1, "weight": 2}).weight == 2.0
    assert problem(CELoss, epsilon=1.0) == ("epsilon", "expected a number >= 0 and < 1, got 1.0")
    assert problem(CELoss, epsilon=-0.1)[0] == "epsilon"
    assert problem(CELoss, weight="heavy") == ("weight", "expected a number, got 'heavy'")


def test_topk_is_one_integer_or_several():
    assert TopkAcc().topk == (1, 5)
    assert TopkAcc.model_validate({"topk": 3}).topk == (3,)
    assert TopkAcc.model_validate({"topk": [1, 3]}).topk == (1, 3)


@pytest.mark.parametrize("topk", [0, True, [1, 0], [1.5], []])
def test_topk_is_positive(topk):
    assert problem(TopkAcc, topk=topk)[0].startswith("topk")


def test_topk_is_distinct():
    assert problem(TopkAcc, topk=[1, 1]) == (
        "topk",
        "topk must be one or more distinct integers, got [1, 1]",
    )

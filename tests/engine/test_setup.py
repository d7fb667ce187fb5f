"""Log lines about a run, before it starts."""

from __future__ import annotations

import pytest

from ppcls.engine.setup import suggest_small_model


@pytest.mark.parametrize(
    ("name", "side", "slow"),
    [("ResNet18", 224, True), ("ResNet18", 32, False), ("MobileNetV3_small_x1_0", 224, False)],
)
def test_small_model_is_suggested_by_operations_at_the_size_of_the_images(
    name: str, side: int, slow: bool
) -> None:
    lines = suggest_small_model(name, [3, side, side])
    assert [line.startswith(f"{name} is slow on a CPU; ") for line in lines] == [True] * slow

"""Scaling learning rates with the batch size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.optimizer.rate_scale import RateScale

COUNTS = st.integers(1, 4096)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.lists(st.floats(0, 10), min_size=1))
def test_rate_scale_multiplies_by_images_per_update_over_base(
    images: int, processes: int, steps: int, base: int, rates: list[float]
) -> None:
    schedule = RateScale(images, processes, steps, base).applied(rates.__getitem__)
    for update, rate in enumerate(rates):
        assert schedule(update) * base == pytest.approx(rate * images * steps)


def test_rate_scale_of_base_batch_keeps_rates() -> None:
    assert RateScale(128, 2, 2, 256).applied(lambda update: 0.1)(7) == 0.1


def test_rate_scale_describes_its_factor() -> None:
    assert RateScale(256, 4, 3, 256).describe() == (
        "learning rates x 3: 768 images per update (256 per step on 4 processes x update_freq 3), "
        "Global.base_batch_size 256"
    )
    assert "(32 per step on 1 process x update_freq 1)" in RateScale(32, 1, 1, 256).describe()

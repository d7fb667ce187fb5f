"""Decisions of mixing: the published distributions, and determinism per step."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from ppcls.data.loaders.mixing import decide_mix
from ppcls.data.sampling.order import Cursor
from ppcls.data.transforms.batch import (
    BatchTransform,
    CutmixOperator,
    Draws,
    Mix,
    MixupOperator,
    OpSampler,
    SampledCutmix,
    SampledMixup,
    Size,
)
from ppcls.data.transforms.specs.rng import step_fractions

STEPS = 2000
SIDES = st.integers(1, 40)
CURSORS = st.builds(Cursor, st.integers(0, 300), st.integers(0, 10_000))
ALPHAS = st.sampled_from([1e-9, 0.2, 1.0, 8.0, 1e6])


def mixes(spec: BatchTransform, size: tuple[int, int] = (224, 224), seed: int = 3) -> list[Mix]:
    return [decide_mix(spec, seed, Cursor(step // 700, step % 700), size) for step in range(STEPS)]


def kept(spec: BatchTransform, **options: int) -> NDArray[np.float64]:
    return np.array([mix.kept for mix in mixes(spec, **options)])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_mixup_weights_follow_beta(alpha: float) -> None:
    """The larger of a row's and its partner's weight; both sum to 1."""
    share = kept(MixupOperator(alpha=alpha))
    assert share.min() >= 0.5
    beta = stats.beta(alpha, alpha)
    assert stats.kstest(share, lambda x: beta.cdf(x) - beta.cdf(1 - x)).pvalue > 0.01


def test_weights_differ_by_seed_epoch_and_step() -> None:
    spec = MixupOperator()
    weights = {
        decide_mix(spec, seed, Cursor(epoch, step), (8, 8)).kept
        for seed in range(5)
        for epoch in range(5)
        for step in range(5)
    }
    assert len(weights) == 125
    assert abs(np.corrcoef(kept(spec, seed=1), kept(spec, seed=2))[0, 1]) < 0.1


@given(SIDES, SIDES, CURSORS)
def test_window_matches_paper(height: int, width: int, cursor: Cursor) -> None:
    """Beta(1, 1) is uniform, so the draw is the share itself."""
    _, share, row, column = step_fractions(0, cursor.epoch, cursor.step, 4)
    window = decide_mix(CutmixOperator(alpha=1.0), 0, cursor, (height, width)).window
    for length, drawn, begin, end in (
        (height, row, window.top, window.bottom),
        (width, column, window.left, window.right),
    ):
        wanted = math.floor(length * math.sqrt(1 - share))
        first = math.floor(length * drawn) - wanted // 2
        assert set(range(begin, end)) == set(range(first, first + wanted)) & set(range(length))


def test_windows_cover_image_evenly() -> None:
    covered = np.zeros([20, 30])
    for mix in mixes(CutmixOperator(), (20, 30)):
        covered[mix.window.top : mix.window.bottom, mix.window.left : mix.window.right] += 1 / STEPS
    assert covered.min() > 0.1
    np.testing.assert_allclose(covered, covered[::-1, ::-1], atol=0.08)


@given(ALPHAS, SIDES, SIDES, CURSORS)
def test_label_weight_is_share_of_remaining_pixels(
    alpha: float, height: int, width: int, cursor: Cursor
) -> None:
    mix = decide_mix(CutmixOperator(alpha=alpha), 0, cursor, (height, width))
    own = np.ones([height, width])
    window = mix.window
    own[window.top : window.bottom, window.left : window.right] = 0
    assert mix.kept == pytest.approx(own.mean(), abs=1e-12)
    assert own.size - own.sum() == window.area
    assert 0 <= window.top <= window.bottom <= height
    assert 0 <= window.left <= window.right <= width


@given(ALPHAS, CURSORS)
def test_mixup_weight_is_in_range(alpha: float, cursor: Cursor) -> None:
    assert 0.5 <= decide_mix(MixupOperator(alpha=alpha), 0, cursor, (8, 8)).kept <= 1


def test_op_sampler_chooses_operators_by_their_probability() -> None:
    spec = OpSampler(
        MixupOperator=SampledMixup(alpha=0.8, prob=0.5), CutmixOperator=SampledCutmix(alpha=1.0, prob=0.3)
    )
    counts: Counter[str] = Counter()
    lone = {"mixup": MixupOperator(alpha=0.8), "cutmix": CutmixOperator(alpha=1.0), "none": None}
    alone = {name: mixes(each) if each is not None else [Mix()] * STEPS for name, each in lone.items()}
    for step, mix in enumerate(mixes(spec)):
        name = "none" if mix == Mix() else "mixup" if mix.window is None else "cutmix"
        counts[name] += 1
        assert mix == alone[name][step]
    assert counts["mixup"] / STEPS == pytest.approx(0.5, abs=0.04)
    assert counts["cutmix"] / STEPS == pytest.approx(0.3, abs=0.04)
    assert counts["none"] / STEPS == pytest.approx(0.2, abs=0.04)


def test_probability_one_always_mixes() -> None:
    for step in range(200):
        cursor = Cursor(1, step)
        assert decide_mix(
            OpSampler(MixupOperator=SampledMixup(alpha=0.4, prob=1.0)), 5, cursor, (8, 8)
        ) == decide_mix(MixupOperator(alpha=0.4), 5, cursor, (8, 8))


@given(st.sampled_from([MixupOperator, CutmixOperator]), st.integers(1, 300), st.integers(0, 99), CURSORS)
def test_mixing_ends_after_the_last_epoch(
    kind: type[MixupOperator | CutmixOperator], last_epoch: int, seed: int, cursor: Cursor
) -> None:
    """Until then, decisions are those without a last epoch."""
    mix = decide_mix(kind(last_epoch=last_epoch), seed, cursor, (8, 8))
    assert mix == (decide_mix(kind(), seed, cursor, (8, 8)) if cursor.epoch < last_epoch else Mix())


def test_own_batch_transform_ends_without_code() -> None:
    class Halves(BatchTransform, abstract=True):
        def decide(self, draws: Draws, size: Size) -> Mix:
            return Mix(0.5)

    spec = Halves(last_epoch=2)
    assert [decide_mix(spec, 0, Cursor(epoch), (8, 8)).kept for epoch in range(4)] == [0.5, 0.5, 1.0, 1.0]


def test_unknown_batch_transform_raises() -> None:
    with pytest.raises(NotImplementedError, match="BatchTransform does not define how to mix images"):
        decide_mix(BatchTransform(), 0, Cursor(), (8, 8))

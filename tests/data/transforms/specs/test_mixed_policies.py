"""AugMix and ML-Decoder's policy: what they decide, and what that does to pixels."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs.decisions import decide
from ppcls.data.transforms.specs.mixed_policies import AugMix, RandAugmentV4
from ppcls.data.transforms.specs.policy_tables import MIX
from ppcls.data.transforms.specs.rng import uniforms

IMAGE = np.random.default_rng(0).integers(20, 200, [40, 60, 3]).astype(np.uint8)
SAMPLES = np.arange(4000)


@pytest.mark.parametrize("coefficient", [0.1, 1.0])
def test_augmix_weights_are_those_of_the_paper(coefficient: float) -> None:
    spec = AugMix(prob=0.7, aug_prob_coeff=coefficient)
    *_, weights = decide(spec, uniforms(3, 0, SAMPLES, spec.draws), np.full([4000, 2], 50))
    share = weights.sum(axis=1)
    assert weights.dtype == np.float32
    assert (weights >= 0).all()
    assert (share <= 1 + 1e-6).all()
    mixed = share > 0
    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)); some shares are too small for float32
    assert abs(mixed.mean() - 0.7) < 0.04
    assert abs(share.mean() - 0.7 / 2) < 0.03
    if coefficient == 1.0:
        assert abs(share[mixed].var() - 1 / 12) < 0.01
    assert np.abs(weights.mean(axis=0) - share.mean() / 3).max() < 0.03


def test_augmix_of_random_depth_uses_one_to_three_operations() -> None:
    spec = AugMix(mixture_depth=-1)
    operation, bins, *_ = decide(spec, uniforms(3, 0, SAMPLES, spec.draws), np.full([4000, 2], 50))
    used = (operation != list(MIX).index("identity")).reshape(-1, 3, 3)
    assert (used[..., :-1] >= used[..., 1:]).all()  # unused steps come last
    assert (
        np.abs(
            np.bincount(used.sum(-1).ravel(), minlength=4) / used[..., 0].size - [0, 1 / 3, 1 / 3, 1 / 3]
        ).max()
        < 0.03
    )
    assert (bins.min(), bins.max()) == (10, 100)  # levels 0.1 to 1


def test_augmix_adds_its_chains_to_the_image() -> None:
    spec = AugMix(mixture_width=2, max_translate_abs=5)
    names = list(MIX)
    operations = np.array([names.index("auto_contrast"), names.index("translate_x")], np.int32)
    weights = np.array([0.25, 0.5], np.float32)
    decisions = (operations, np.array([0, 1000], np.int32), np.array([0, 0], np.int32), weights)
    stretched = np.asarray(ImageOps.autocontrast(Image.fromarray(IMAGE)), float)
    moved = np.zeros_like(IMAGE, float)
    moved[:, 5:] = IMAGE[:, :-5]
    expected = 0.25 * IMAGE + 0.25 * stretched + 0.5 * moved
    assert np.abs(apply(spec, IMAGE, decisions) - expected).max() < 2
    unmixed = (*decisions[:3], np.zeros(2, np.float32))
    assert (apply(spec, IMAGE, unmixed) == IMAGE).all()


def test_v4_cuts_out_squares_of_at_most_40_pixels() -> None:
    spec = RandAugmentV4()
    decisions = decide(spec, uniforms(3, 0, SAMPLES, spec.draws), np.tile([40, 60], [4000, 1]))
    operation, bins, _, _, squares = decisions
    assert (squares[..., :2] >= 0).all()
    assert (squares[..., :2] + squares[..., 2:] <= [40, 60]).all()
    assert (bins.min(), bins.max(), squares[..., 3].max()) == (1, 9, 40)
    identity, cutout = (spec.stages[0].index(name) for name in ("identity", "cutout"))
    assert abs((operation == identity).mean() - 0.5) < 0.03
    row = next(row for row in SAMPLES if operation[row].tolist() == [cutout, identity])
    result = apply(spec, IMAGE, tuple(part[row] for part in decisions))
    top, left, height, width = squares[row, 0].astype(int)
    assert height * width > 0
    assert (result[top : top + height, left : left + width] == 128).all()
    assert (result != IMAGE).any(axis=-1).sum() <= height * width

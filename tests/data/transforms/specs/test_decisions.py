"""Decisions: one row per sample, independent of the batch, with the true sizes of the images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops import decide_and_apply
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    count_draws,
    plan_chain,
)
from ppcls.data.transforms.specs.basic import scale_to_short_side
from ppcls.data.transforms.specs.chain import decide_chain
from ppcls.data.transforms.specs.decisions import (
    count_decisions,
    sides_after,
)
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, RandomErasing
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRot90, RandomRotation
from ppcls.data.transforms.specs.photometric import ColorJitter, GaussianBlur
from ppcls.data.transforms.specs.rng import uniforms

STEPS: list[Transform] = [
    RandFlipImage(),
    RandFlipImage(flip_code=-1),
    ResizeImage(resize_short=21),
    ResizeImage(size=(31, 24)),
    RandCropImage(size=(25, 30)),
    Pad(padding=[1, 2, 3, 4], padding_mode="edge"),
    RandomRotation(degrees=30),
    RandomRot90(),
    ColorJitter(prob=0.5, brightness=0.5, hue=0.1),
    GaussianBlur(kernel_size=3),
    RandomErasing(mean=(9,)),
    Cutout(n_holes=2, length=9),
    GridMask(d1=5, d2=20),
]
CHAINS = st.lists(st.sampled_from(STEPS), max_size=4)
SIDES = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=5)


@given(CHAINS, SIDES)
def test_sides_equal_those_of_images(chain: list[Transform], sides: list[tuple[int, int]]) -> None:
    ops = plan_chain(
        [*chain, ResizeImage(size=(30, 30)), RandomCropImage(size=(25, 20)), CropImage(size=(20, 10))], "HWC"
    )
    draws = uniforms(7, 0, np.arange(len(sides)), count_draws(ops))
    known = np.array(sides)
    images = [np.zeros([*each, 3], np.uint8) for each in sides]
    for op, decided in zip(ops, decide_chain(ops, draws, known), strict=True):
        known = sides_after(op.spec, known, decided)
        images = [
            decide_and_apply(op.spec, image, own[op.slot : op.slot + op.spec.draws])
            for image, own in zip(images, draws, strict=True)
        ]
        assert [list(image.shape[:2]) for image in images] == known.tolist()


@given(CHAINS, SIDES)
def test_decisions_do_not_depend_on_batch_or_fusion(
    chain: list[Transform], sides: list[tuple[int, int]]
) -> None:
    ops = plan_chain([DecodeImage(), *chain, RandCropImage(size=(9, 9)), STEPS[0], NormalizeImage()], "CHW")
    draws = uniforms(7, 0, np.arange(len(sides)), count_draws(ops))
    known = np.array(sides)
    whole = list(decide_chain(ops, draws, known))
    for row in range(len(sides)):
        alone = decide_chain(ops, draws[row : row + 1], known[row : row + 1])
        for together, single in zip(whole, alone, strict=True):
            assert [each[row].tolist() for each in together] == [each[0].tolist() for each in single]
    for fused in (fuse(ops), fuse(ops, by_opencv=True)):
        found = [each.tolist() for decided in decide_chain(fused, draws, known) for each in decided]
        assert found == [each.tolist() for decided in whole for each in decided]


@given(CHAINS, SIDES)
def test_count_decisions_equals_number_of_arrays(
    chain: list[Transform], sides: list[tuple[int, int]]
) -> None:
    ops = plan_chain([DecodeImage(), *chain, RandCropImage(size=(9, 9)), NormalizeImage()], "CHW")
    draws = uniforms(7, 0, np.arange(len(sides)), count_draws(ops))
    for op, decided in zip(ops, decide_chain(ops, draws, np.array(sides)), strict=True):
        assert len(decided) == count_decisions(op.spec)
        for each in decided:
            assert len(each) == len(sides)
            assert each.flags.c_contiguous


def test_random_transform_without_decisions_raises() -> None:
    class _Noise(Transform):
        draws = 1

    with pytest.raises(NotImplementedError, match="_Noise"):
        count_decisions(_Noise())


@pytest.mark.parametrize(
    ("sides", "expected"), [((480, 640), (100, 133)), ((641, 480), (134, 100)), ((1, 3), (100, 300))]
)
def test_short_side_rounds_half_up(sides: tuple[int, int], expected: tuple[int, int]) -> None:
    assert scale_to_short_side(np.array([sides]), 100).tolist() == [list(expected)]

"""Which neighbours are fused; everything else stays unchanged."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppcls.data.transforms.base import Layout, Transform, check_chain
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
    count_draws,
    plan_chain,
)
from ppcls.data.transforms.specs.fuse import (
    CropFlipNormalize,
    DecodeCropFlipNormalize,
    DecodeRandCrop,
    FusedTransform,
    fuse,
)

DECODE, FLIP, NORMALIZE, TO_CHW = DecodeImage(), RandFlipImage(), NormalizeImage(), ToCHWImage()
UPSIDE_DOWN, BOTH = RandFlipImage(flip_code=0), RandFlipImage(flip_code=-1)
SHORT, SQUARE = ResizeImage(resize_short=256), ResizeImage(size=(64, 64))
CROP, RAND_CROP = CropImage(size=(32, 32)), RandCropImage(size=(64, 64))
DECODE_CROP = DecodeRandCrop(decode=DECODE, crop=RAND_CROP)


def last(**parts: Transform) -> CropFlipNormalize:
    return CropFlipNormalize.model_validate({"normalize": NORMALIZE, **parts})


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (
            [DECODE, RAND_CROP, FLIP, NORMALIZE, TO_CHW],
            [Op(DECODE_CROP, 0), Op(last(flip=FLIP, to_chw=TO_CHW), 4)],
        ),
        ([DECODE, RAND_CROP, NORMALIZE], [Op(DECODE_CROP, 0), Op(last(), 4)]),
        (
            [DECODE, SHORT, CROP, NORMALIZE, TO_CHW],
            [Op(DECODE, 0), Op(SHORT, 0), Op(last(crop=CROP, to_chw=TO_CHW), 0)],
        ),
        (
            [DECODE, SQUARE, CROP, FLIP, NORMALIZE],
            [Op(DECODE, 0), Op(SQUARE, 0), Op(last(crop=CROP, flip=FLIP), 0)],
        ),
        (
            [DECODE, SQUARE, FLIP, FLIP, NORMALIZE],
            [Op(DECODE, 0), Op(SQUARE, 0), Op(FLIP, 0), Op(last(flip=FLIP), 1)],
        ),
        # a flip other than left-right is not crop_mirror_normalize's
        (
            [DECODE, SQUARE, UPSIDE_DOWN, NORMALIZE],
            [Op(DECODE, 0), Op(SQUARE, 0), Op(UPSIDE_DOWN, 0), Op(last(), 1)],
        ),
        ([DECODE, SQUARE, BOTH, NORMALIZE], [Op(DECODE, 0), Op(SQUARE, 0), Op(BOTH, 0), Op(last(), 1)]),
        (
            [DECODE, SQUARE, CROP, BOTH, NORMALIZE],
            [Op(DECODE, 0), Op(SQUARE, 0), Op(CROP, 0), Op(BOTH, 0), Op(last(), 1)],
        ),
        # the flip comes first: not the order of crop_mirror_normalize, though a centre crop could be moved
        (
            [DECODE, SQUARE, FLIP, CROP, NORMALIZE],
            [Op(DECODE, 0), Op(SQUARE, 0), Op(FLIP, 0), Op(last(crop=CROP), 1)],
        ),
        # only a random crop that follows the decoder at once cuts while decoding
        (
            [DECODE, SQUARE, RAND_CROP, NORMALIZE],
            [Op(DECODE, 0), Op(SQUARE, 0), Op(RAND_CROP, 0), Op(last(), 4)],
        ),
        ([DECODE, FLIP, RAND_CROP, NORMALIZE], [Op(DECODE, 0), Op(FLIP, 0), Op(RAND_CROP, 1), Op(last(), 5)]),
        ([DECODE, SQUARE], [Op(DECODE, 0), Op(SQUARE, 0)]),
        ([DECODE], [Op(DECODE, 0)]),
        ([], []),
    ],
)
def test_chain_is_fused(chain: list[Transform], expected: list[Op]) -> None:
    layout = "CHW" if TO_CHW in chain else "HWC"
    ops = plan_chain(chain, layout)
    before = tuple(ops)
    assert fuse(ops) == tuple(expected)
    assert ops == before
    assert fuse(list(ops)) == tuple(expected)


WHOLE = DecodeCropFlipNormalize(decode=DECODE, crop=RAND_CROP, flip=FLIP, normalize=NORMALIZE, to_chw=TO_CHW)
FEW = NormalizeImage(scale=1, mean=(3,), std=(2,))
DEEP, GREY = DecodeImage(dtype="uint16"), DecodeImage(channels=1)


def test_opencv_fuses_whole_chain() -> None:
    ops = plan_chain([DECODE, RAND_CROP, FLIP, NORMALIZE], "CHW")
    (fused,) = fuse(ops, by_opencv=True)
    assert fused == Op(WHOLE, 0)
    assert fused.positions == tuple(position for op in ops for position in op.positions)


@pytest.mark.parametrize(
    ("chain", "layout"),
    [
        ([DECODE, RAND_CROP, FLIP, NORMALIZE], "HWC"),
        ([DECODE, RAND_CROP, NORMALIZE], "CHW"),
        ([DECODE, RAND_CROP, UPSIDE_DOWN, NORMALIZE], "CHW"),
        ([DECODE, RAND_CROP, FLIP, FLIP, NORMALIZE], "CHW"),
        ([DECODE, RAND_CROP, CROP, FLIP, NORMALIZE], "CHW"),
        ([DECODE, SQUARE, FLIP, NORMALIZE], "CHW"),
        ([DECODE, RandCropImage(size=(64, 64), backend="pil"), FLIP, NORMALIZE], "CHW"),
        ([DECODE, RAND_CROP, FLIP, NormalizeImage(output_fp16=True)], "CHW"),
        ([DECODE, RAND_CROP, FLIP, NormalizeImage(channel_num=4)], "CHW"),
        ([DEEP, RAND_CROP, FLIP, NormalizeImage(scale=1 / 65535)], "CHW"),
        ([GREY, RAND_CROP, FLIP, FEW], "CHW"),
    ],
)
def test_unsuitable_chain_is_not_fused_whole(chain: list[Transform], layout: Layout) -> None:
    ops = plan_chain(chain, layout)
    assert fuse(ops, by_opencv=True) == fuse(ops)


def test_whole_chain_needs_window_decoding() -> None:
    ops = plan_chain([DECODE, RAND_CROP, FLIP, NORMALIZE], "CHW")
    assert fuse(ops, by_opencv=True, decode_window=False) == fuse(ops, decode_window=False)


def unfuse(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Returns the parts of fused transforms, with the slots that they draw from."""
    found: list[Op] = []
    for op in ops:
        slot = op.slot
        for part in op.spec.parts if isinstance(op.spec, FusedTransform) else [op.spec]:
            found.append(Op(part, slot))
            slot += part.draws
    return tuple(found)


FLIPS = st.sampled_from([FLIP, UPSIDE_DOWN, BOTH])
SIZES = st.sampled_from([SQUARE, RAND_CROP, CROP])


@st.composite
def chains(draw: st.DrawFn) -> list[Transform]:
    middle = draw(st.lists(FLIPS | st.just(SQUARE) | st.just(RAND_CROP), max_size=4))
    sized = draw(st.booleans())
    return [
        DECODE,
        *middle,
        *([SQUARE, CROP] if sized else [RAND_CROP]),
        *draw(st.lists(FLIPS, max_size=2)),
        NORMALIZE,
    ]


@given(chains(), st.sampled_from(["HWC", "CHW"]), st.booleans())
@example(chain=[DECODE, RAND_CROP, FLIP, NORMALIZE], layout="CHW", by_opencv=True)
def test_fusing_keeps_transforms_order_slots_and_result(
    chain: list[Transform], layout: Layout, by_opencv: bool
) -> None:
    ops = plan_chain(chain, layout)
    fused = fuse(ops, by_opencv=by_opencv)
    assert [op.spec for op in unfuse(fused)] == [op.spec for op in ops]
    random = [op for op in ops if op.spec.draws]
    assert [op for op in unfuse(fused) if op.spec.draws] == random, "each draws from the slot it had"
    assert check_chain([op.spec for op in fused]) == check_chain([op.spec for op in ops])
    assert fuse(fused, by_opencv=by_opencv) == fused
    assert len([op for op in fused if isinstance(op.spec, CropFlipNormalize | DecodeCropFlipNormalize)]) == 1


def test_fused_transform_counts_draws() -> None:
    ops = plan_chain([DECODE, RAND_CROP, FLIP, NORMALIZE], "CHW")
    assert count_draws(fuse(ops)) == count_draws(ops) == 5
    assert count_draws(fuse(ops, by_opencv=True)) == WHOLE.draws == 5

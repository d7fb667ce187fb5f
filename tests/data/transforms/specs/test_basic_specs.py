"""The basic specs, valid chains, and how a chain is planned."""

from __future__ import annotations

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from ppcls.data.transforms.base import Chain, ChainError, ImageState, Transform, check_chain
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

DEEP = DecodeImage(channels=5, dtype="uint16")
PER_CHANNEL = NormalizeImage(scale=1 / 65535, mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=(1, 2, 3, 4, 5))
DECODE, FLIP, NORMALIZE, TO_CHW = DecodeImage(), RandFlipImage(), NormalizeImage(), ToCHWImage()
SHORT, SQUARE = ResizeImage(resize_short=256), ResizeImage(size=(32, 32))
CROP, RAND_CROP = CropImage(size=(224, 224)), RandCropImage(size=(224, 224))


@pytest.mark.parametrize(
    ("chain", "layout", "size"),
    [
        ([DECODE, RAND_CROP, FLIP, NORMALIZE], "HWC", (224, 224)),
        ([DECODE, SHORT, CROP, NORMALIZE, TO_CHW], "CHW", (224, 224)),
        ([DECODE, ResizeImage(size=(40, 30)), NORMALIZE], "HWC", (30, 40)),
        ([DECODE, ResizeImage(size=(40, 30)), CropImage(size=(40, 20)), NORMALIZE], "HWC", (20, 40)),
        ([DECODE, RandCropImage(size=(40, 30)), NORMALIZE], "HWC", (30, 40)),
        ([DECODE, SHORT, CropImage(size=(256, 256)), NORMALIZE], "HWC", (256, 256)),
        ([DECODE, SQUARE, TO_CHW, NormalizeImage(order="chw")], "CHW", (32, 32)),
        ([DECODE, SQUARE, NormalizeImage(order="")], "HWC", (32, 32)),
        ([DECODE, SQUARE, NormalizeImage(mean=(0.5,), std=(0.5,))], "HWC", (32, 32)),
    ],
)
def test_valid_chain_has_state(chain: list[Transform], layout: str, size: tuple[int, int]) -> None:
    state = check_chain(chain)
    assert (state.encoded, state.layout, state.dtype, state.channels) == (False, layout, "float32", 3)
    assert state.size == size
    assert state.shorter == min(size)


@pytest.mark.parametrize(
    ("normalize", "channels", "dtype"),
    [
        (NormalizeImage(channel_num=4), 4, "float32"),
        (NormalizeImage(channel_num=3, output_fp16=True), 3, "float16"),
        (NormalizeImage(channel_num=4, output_fp16=True), 4, "float16"),
    ],
)
def test_channel_padding_and_float16_state(normalize: NormalizeImage, channels: int, dtype: str) -> None:
    state = check_chain([DECODE, SQUARE, normalize])
    assert (state.channels, state.dtype) == (channels, dtype)


def test_wrong_channel_num_is_rejected() -> None:
    with pytest.raises(ChainError, match="expected channel_num 3 or the next power of two, 4, got 5"):
        check_chain([DECODE, SQUARE, NormalizeImage(channel_num=5)])
    with pytest.raises(ValueError, match="channel_num requires one value per channel in mean and std"):
        NormalizeImage(mean=(0.5,), std=(0.5,), channel_num=4)


@pytest.mark.parametrize(
    "chain",
    [
        [DEEP, SQUARE, FLIP, PER_CHANNEL],
        [DEEP, RAND_CROP, FLIP, PER_CHANNEL],
        [DEEP, SHORT, CROP, PER_CHANNEL, TO_CHW],
        [DEEP, SQUARE, NormalizeImage(scale=1.0, mean=(0.5,), std=(0.5,))],
        [DecodeImage(channels=5), ResizeImage(size=(32, 32), backend="pil"), PER_CHANNEL],
    ],
)
def test_five_channel_chain_has_state(chain: list[Transform]) -> None:
    state = check_chain(chain)
    assert (state.channels, state.dtype, state.normalized) == (5, "float32", True)


@pytest.mark.parametrize(
    ("chain", "position", "text"),
    [
        ([], None, "no transform decodes the image; start with DecodeImage or DecodeNumpy"),
        ([SQUARE], 0, "expected a decoded image; put DecodeImage before this transform"),
        ([FLIP], 0, "expected a decoded image; put DecodeImage before this transform"),
        ([NORMALIZE], 0, "expected a decoded image; put DecodeImage before this transform"),
        ([TO_CHW], 0, "expected a decoded image; put DecodeImage before this transform"),
        ([DECODE, DECODE], 1, "the image is already decoded; remove this DecodeImage"),
        ([DECODE, SQUARE], None, "the model needs float32; end with NormalizeImage"),
        (
            [DECODE, NORMALIZE],
            None,
            "images of different sizes can't form a batch; add CropImage or ResizeImage(size)",
        ),
        (
            [DECODE, SHORT, NORMALIZE],
            None,
            "images of different sizes can't form a batch; add CropImage or ResizeImage(size)",
        ),
        (
            [DECODE, CROP],
            1,
            "a 224x224 crop needs images of at least 224x224 pixels, "
            "got images of unknown size; "
            "decrease its size, or resize the images first",
        ),
        (
            [DECODE, SHORT, CropImage(size=(300, 200))],
            2,
            "a 300x200 crop needs images of at least 300x200 pixels, "
            "got images with a shorter side of 256; "
            "decrease its size, or resize the images first",
        ),
        (
            [DECODE, SQUARE, CropImage(size=(20, 33))],
            2,
            "a 20x33 crop needs images of at least 20x33 pixels, "
            "got 32x32; "
            "decrease its size, or resize the images first",
        ),
        (
            [DECODE, SQUARE, CropImage(size=(33, 20))],
            2,
            "a 33x20 crop needs images of at least 33x20 pixels, "
            "got 32x32; "
            "decrease its size, or resize the images first",
        ),
        ([DECODE, TO_CHW, SQUARE], 2, "expected an HWC image, got CHW; put this transform before ToCHWImage"),
        ([DECODE, TO_CHW, FLIP], 2, "expected an HWC image, got CHW; put this transform before ToCHWImage"),
        (
            [DECODE, TO_CHW, RAND_CROP],
            2,
            "expected an HWC image, got CHW; put this transform before ToCHWImage",
        ),
        ([DECODE, TO_CHW, TO_CHW], 2, "expected an HWC image, got CHW; put this transform before ToCHWImage"),
        (
            [DECODE, SQUARE, NormalizeImage(order="chw")],
            2,
            "order is 'chw', but the image is HWC; set order: ''",
        ),
        (
            [DECODE, TO_CHW, NormalizeImage(order="hwc")],
            2,
            "order is 'hwc', but the image is CHW; set order: ''",
        ),
        (
            [DECODE, SQUARE, NormalizeImage(mean=(0.5, 0.5), std=(1, 1))],
            2,
            "expected 1 or 3 values in mean and std, got 2",
        ),
        (
            [DECODE, SQUARE, NormalizeImage(mean=(), std=())],
            2,
            "expected 1 or 3 values in mean and std, got 0",
        ),
        (
            [DEEP, ResizeImage(size=(8, 8), backend="pil")],
            1,
            "expected an 8-bit image, got uint16; set dtype: uint8 in the decoder",
        ),
        (
            [DEEP, RandCropImage(size=(8, 8), backend="pil")],
            1,
            "expected an 8-bit image, got uint16; set dtype: uint8 in the decoder",
        ),
        (
            [DEEP, SQUARE, NormalizeImage(mean=(0.5,), std=(0.5,))],
            2,
            "the default scale is for 8-bit pixels, but the image is uint16; set scale",
        ),
        ([DEEP, SQUARE, NormalizeImage(scale=1.0)], 2, "expected 1 or 5 values in mean and std, got 3"),
        (
            [DECODE, NORMALIZE, SQUARE],
            2,
            "expected an image that is not normalized; put this transform before NormalizeImage",
        ),
        (
            [DECODE, NORMALIZE, RAND_CROP],
            2,
            "expected an image that is not normalized; put this transform before NormalizeImage",
        ),
        (
            [DECODE, SQUARE, NORMALIZE, NORMALIZE],
            3,
            "expected an image that is not normalized; put this transform before NormalizeImage",
        ),
    ],
)
def test_invalid_chain_error_names_position(chain: list[Transform], position: int | None, text: str) -> None:
    with pytest.raises(ChainError) as caught:
        check_chain(chain)
    assert (caught.value.position, str(caught.value)) == (position, text)


@pytest.mark.parametrize(
    ("cls", "fields", "text"),
    [
        (ResizeImage, {}, "expected either size or resize_short, got both or neither"),
        (
            ResizeImage,
            {"size": 8, "resize_short": 8},
            "expected either size or resize_short, got both or neither",
        ),
        (
            ResizeImage,
            {"size": 8, "interpolation": "nearest"},
            "backend cv2 supports only interpolation bilinear, got nearest; set backend: pil, or "
            "interpolation: bilinear",
        ),
        (
            RandCropImage,
            {"size": 8, "interpolation": "lanczos"},
            "backend cv2 supports only interpolation bilinear, got lanczos; set backend: pil, or "
            "interpolation: bilinear",
        ),
        (RandCropImage, {"size": 8, "scale": [0, 0]}, "expected a maximum scale > 0, got 0"),
        (RandCropImage, {"size": 8, "ratio": [2, 1]}, "expected ratio as [min, max], got [2.0, 1.0]"),
        (RandCropImage, {"size": 8, "ratio": [0, 1]}, "expected a number >= 0.01 and <= 100, got 0"),
        (
            RandCropImage,
            {"size": 8, "ratio": [1, 1e9]},
            "expected a number >= 0.01 and <= 100, got 1000000000.0",
        ),
        (NormalizeImage, {"scale": 0}, "expected a scale other than 0, got 0"),
        (RandFlipImage, {"flip_code": 2}, "expected 1, 0 or -1, got 2"),
        (DecodeImage, {"channel_first": True}, "expected False, got True"),
        (DecodeImage, {"channels": 0}, "expected an integer > 0, got 0"),
        (DecodeImage, {"dtype": "uint32"}, "expected 'uint8' or 'uint16', got 'uint32'"),
        (
            DecodeImage,
            {"channels": 4, "to_rgb": False},
            "to_rgb: False requires 3 channels, got 4; remove to_rgb",
        ),
    ],
)
def test_contradicting_fields_are_rejected(
    cls: type[Transform], fields: dict[str, object], text: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        cls.model_validate(fields)
    assert [each["msg"].removeprefix("Value error, ") for each in caught.value.errors()] == [text]


@pytest.mark.parametrize("backend", ["cv2", "pil"])
def test_only_pillow_antialiases(backend: str) -> None:
    assert ResizeImage(size=(8, 8), backend=backend).antialias == (backend == "pil")
    assert not ResizeImage(size=(8, 8), backend="pil", interpolation="nearest").antialias


def test_size_is_width_and_height() -> None:
    assert CropImage.model_validate({"size": 8}).size == (8, 8)
    assert CropImage.model_validate({"size": [8, 6]}).size == (8, 6)


def test_spec_without_after_raises() -> None:
    class Nothing(Transform):
        """A spec without `after`."""

    with pytest.raises(NotImplementedError, match="Nothing does not define its effect on an image"):
        Nothing().after(ImageState())


def test_random_transforms_have_separate_slots() -> None:
    ops = plan_chain([DECODE, RAND_CROP, FLIP, FLIP, NORMALIZE], "HWC")
    assert ops == (Op(DECODE, 0), Op(RAND_CROP, 0), Op(FLIP, 4), Op(FLIP, 5), Op(NORMALIZE, 6))
    assert count_draws(ops) == 6
    assert count_draws(plan_chain([DECODE, SQUARE, NORMALIZE], "CHW")) == 0
    assert count_draws(()) == 0


@pytest.mark.parametrize("written", [[], [TO_CHW]])
def test_chain_ends_in_model_layout(written: list[Transform]) -> None:
    chain = [DECODE, SQUARE, NORMALIZE, *written]
    assert [op.spec for op in plan_chain(chain, "HWC")] == [DECODE, SQUARE, NORMALIZE]
    assert [op.spec for op in plan_chain(chain, "CHW")] == [DECODE, SQUARE, NORMALIZE, TO_CHW]


def test_to_chw_moves_to_end() -> None:
    normalize = NormalizeImage(order="chw")
    chain = [DECODE, SQUARE, TO_CHW, normalize]
    assert [op.spec for op in plan_chain(chain, "CHW")] == [DECODE, SQUARE, normalize, TO_CHW]


@pytest.mark.parametrize(
    "chain",
    [
        """
        - DecodeImage: {to_rgb: True, channel_first: False}
        - RandCropImage: {size: 224, interpolation: bicubic, backend: pil}
        - RandFlipImage: {flip_code: 1}
        - ColorJitter: {brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1}
        - NormalizeImage: {scale: 1.0/255.0, mean: [0.5, 0.5, 0.5], std: [0.2, 0.2, 0.2], order: ''}
        - RandomErasing: {EPSILON: 0.25, sh: 1.0/3.0, r1: 0.3, attempt: 10, use_log_aspect: True, mode: pixel}
        """,
        """
        - DecodeImage:
        - ResizeImage: {size: [128, 256]}
        - RandFlipImage:
        - Pad: {padding: 10, fill: 0}
        - RandCropImageV2: {size: [128, 256]}
        - RandomRotation: {prob: 0.5, degrees: [-10, 10], interpolation: bilinear}
        - NormalizeImage:
        - RandomErasing: {EPSILON: 0.5, sl: 0.02, sh: 0.4, r1: 0.3, mean: [0.485, 0.456, 0.406]}
        """,
        """
        - DecodeImage:
        - RandCropImage: {size: 224}
        - RandFlipImage: {flip_code: 0}
        - NormalizeImage: {order: ''}
        - Cutout: {n_holes: 1, length: 112}
        - ToCHWImage:
        """,
        """
        - DecodeImage:
        - RandCropImage: {size: 224}
        - NormalizeImage: {order: ''}
        - ToCHWImage:
        - GridMask: {d1: 96, d2: 224, rotate: 1, ratio: 0.5, mode: 0, prob: 1.0}
        """,
    ],
)
def test_paddleclas_chain_is_read(chain: str) -> None:
    specs = TypeAdapter(Chain).validate_python(yaml.safe_load(chain))
    state = check_chain(specs)
    assert (state.dtype, state.channels) == ("float32", 3)
    assert [type(op.spec) for op in plan_chain(specs, "CHW")][-1] is ToCHWImage

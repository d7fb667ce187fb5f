"""Decoding: NumPy and DALI return the same pixels and reject the same files."""

from __future__ import annotations

import io
import struct
from typing import Any

import cv2
import imagecodecs
import numpy as np
import pytest
from dali_decode import decode_by_dali
from hypothesis import given, settings
from hypothesis import strategies as st
from image_kinds import by_pillow, exif_of
from numpy.typing import NDArray
from PIL import Image, ImageOps
from zoo import make_zoo, noise, tiff

from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.specs import DecodeImage

RGB, RGB16 = DecodeImage(), DecodeImage(dtype="uint16")
GREY, GREY16 = DecodeImage(channels=1), DecodeImage(channels=1, dtype="uint16")
TWO16, FOUR = DecodeImage(channels=2, dtype="uint16"), DecodeImage(channels=4)
FIVE, FIVE16 = DecodeImage(channels=5), DecodeImage(channels=5, dtype="uint16")
SPECS = {
    "rgb": RGB,
    "bgr": DecodeImage(to_rgb=False),
    "rgb16": RGB16,
    "grey": GREY,
    "grey16": GREY16,
    "two16": TWO16,
    "four": FOUR,
    "five": FIVE,
    "five16": FIVE16,
}

TAKEN = {
    "rgb": 53,
    "bgr": 53,
    "rgb16": 53,
    "grey": 12,
    "grey16": 12,
    "two16": 2,
    "four": 6,
    "five": 13,
    "five16": 13,
}


@pytest.fixture(scope="module")
def zoo() -> dict[str, bytes]:
    return make_zoo()


def split_zoo(spec: DecodeImage, zoo: dict[str, bytes]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Returns what numpy_ops decodes, and the names of what it refuses."""
    taken, refused = {}, []
    for name, encoded in zoo.items():
        try:
            taken[name] = decode(spec, encoded)
        except DecodeError:
            refused.append(name)
    return taken, refused


def grey_levels(spec: DecodeImage, name: str) -> float:
    """How far apart pixels may be, of 255."""
    if name in ("cmyk jpeg", "palette tiff"):
        return 1  # the product of ink and black; a TIFF's palette has 16 bits
    deep = name in ("16-bit grey png", "uint16 tiff of 1")
    return 1 if deep and spec.channels == 3 and spec.dtype == "uint8" else 0  # OpenCV cuts where DALI rounds


@pytest.mark.parametrize("kind", SPECS)
def test_dali_decodes_like_numpy(kind: str, zoo: dict[str, bytes]) -> None:
    spec = SPECS[kind]
    level = 257 if spec.dtype == "uint16" else 1
    taken, _ = split_zoo(spec, zoo)
    assert len(taken) == TAKEN[kind]
    for (name, expected), found in zip(
        taken.items(), decode_by_dali(spec, [zoo[name] for name in taken], "cpu"), strict=True
    ):
        assert found.shape == expected.shape, name
        assert found.dtype == expected.dtype == spec.dtype, name
        assert np.abs(found.astype(int) - expected).max() <= level * grey_levels(spec, name), name


QUICK = ("rgb", "grey", "four")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in SPECS]
)
def test_dali_rejects_like_numpy(kind: str, zoo: dict[str, bytes]) -> None:
    for name in split_zoo(SPECS[kind], zoo)[1]:
        with pytest.raises((DecodeError, RuntimeError)):
            decode_by_dali(SPECS[kind], [zoo[name]], "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", SPECS)
def test_gpu_decodes_like_numpy(kind: str, zoo: dict[str, bytes]) -> None:
    spec = SPECS[kind]
    level = 257 if spec.dtype == "uint16" else 1
    taken, _ = split_zoo(spec, zoo)
    for (name, expected), found in zip(
        taken.items(), decode_by_dali(spec, [zoo[name] for name in taken], "gpu"), strict=True
    ):
        assert found.shape == expected.shape, name
        assert found.dtype == expected.dtype, name
        lossy = "jpeg" in name or "webp" in name  # the GPU decodes by other arithmetic
        difference = np.abs(found.astype(int) - expected)
        assert difference.mean() <= level * (3 if lossy else grey_levels(spec, name)), name


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["rgb", "two16", "five16"])
def test_gpu_rejects_like_numpy(kind: str, zoo: dict[str, bytes]) -> None:
    """Of the kinds that a decoder of its own refuses: headers, which come first, are read by the CPU."""
    for name in split_zoo(SPECS[kind], zoo)[1]:
        with pytest.raises((DecodeError, RuntimeError)):
            decode_by_dali(SPECS[kind], [zoo[name]], "gpu")


NO_IMAGE = "not an image that can be decoded"
REASONS: list[tuple[DecodeImage, str, str]] = [
    (RGB, "nothing", "the file is empty"),
    *((RGB, name, NO_IMAGE) for name in ("one byte", "text")),
    (RGB, "zeros", "only zero bytes instead of an image; copy the file again"),
    (RGB, "gif", "a GIF is not supported; convert the image to JPEG or PNG"),
    *(
        (RGB, name, f"the {kind} file is truncated: its end is missing; copy it again")
        for name, kind in (
            ("half a jpeg", "JPEG"),
            ("half a progressive jpeg", "JPEG"),
            ("head of a jpeg", "JPEG"),
            ("jpeg without its last byte", "JPEG"),
            ("half a png", "PNG"),
            ("half a bmp", "BMP"),
            ("half a webp", "WEBP"),
            ("half a jpeg2000", "JPEG2000"),
        )
    ),
    (FIVE16, "half a tiff", "the file is truncated: it ends before its last pixels"),
    (RGB, "huge png", "20000x20000 pixels are more than DecodeImage's max_pixels, 100000000"),
    (RGB, "uint16 tiff of 5", "expected 3 channels, found 5 channels"),
    (RGB, "alpha tiff", "expected 3 channels, found 4 channels"),
    (FIVE16, "uint16 tiff of 3", "expected 5 channels, found 3 channels"),
    (FIVE16, "jpeg", "expected 5 channels, found 3 channels"),
    (
        GREY,
        "tiff of pages",
        "expected a TIFF with one page, found several; save one image per file, with interleaved channels",
    ),
    (FIVE16, "grey jpeg", "expected 5 channels, found 1 channel"),
    (GREY, "jpeg", "expected 1 channel, found 3 channels"),
    (GREY, "palette png", "expected 1 channel, found 3 channels"),
    (FOUR, "cmyk jpeg", "expected 4 channels, found 3 channels"),
    (FOUR, "transparent png", "expected 4 channels, found 3 channels"),
    (TWO16, "grey alpha png", "a PNG with 2 channels can't be decoded; save it as a TIFF"),
    (FIVE16, "float tiff", "expected a TIFF of 8- or 16-bit unsigned samples, found 32-bit float"),
    (FIVE16, "32-bit tiff", "expected a TIFF of 8- or 16-bit unsigned samples, found 32-bit unsigned"),
    (FIVE16, "signed tiff", "expected a TIFF of 8- or 16-bit unsigned samples, found 16-bit signed"),
    (RGB, "two colours tiff", "expected a TIFF of 8- or 16-bit unsigned samples, found 1-bit unsigned"),
    (
        FIVE16,
        "tiff of 5 turned 6",
        "EXIF orientation 6 is not supported for 5 channels; save the image upright",
    ),
    (FOUR, "turned alpha png", "EXIF orientation 6 is not supported for 4 channels; save the image upright"),
    (RGB, "planar tiff of colours", "the TIFF has separate planes; save it with interleaved channels"),
    (FIVE16, "planar tiff", "the TIFF has separate planes; save it with interleaved channels"),
    (
        FIVE16,
        "lzma tiff",
        "compression 34925 (LZMA) of a TIFF of channels is not supported; save it uncompressed, or with LZW "
        "or deflate",
    ),
    (
        FIVE16,
        "predicted packbits tiff",
        "a TIFF with PackBits compression and a predictor is not supported; save it without a predictor",
    ),
]


@pytest.mark.parametrize(("spec", "name", "reason"), REASONS)
def test_decode_error_names_the_reason(
    spec: DecodeImage, name: str, reason: str, zoo: dict[str, bytes]
) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(spec, zoo[name])
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "name", ["uint16 tiff of 5", "lzw tiff", "predicted zlib tiff", "tiled tiff", "bigtiff"]
)
def test_decode_tiff_is_lossless(name: str, zoo: dict[str, bytes]) -> None:
    np.testing.assert_array_equal(decode(FIVE16, zoo[name]), noise(5))


def test_decode_applies_tiff_orientation(zoo: dict[str, bytes]) -> None:
    """By tifffile and by OpenCV; the numbers are what EXIF 2.32, 4.6.4 says of row 0 and column 0."""
    upright = noise(3)
    turned = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright, -1),
        7: np.rot90(upright, 2).swapaxes(0, 1),
        8: np.rot90(upright),
    }
    for orientation, expected in turned.items():
        for kind in ("3", "colours"):
            found = decode(RGB16, zoo[f"tiff of {kind} turned {orientation}"])
            np.testing.assert_array_equal(found, expected, f"{kind} {orientation}")


def test_decode_scales_another_depth() -> None:
    shallow, deep = noise(5, "uint8"), noise(5)
    np.testing.assert_array_equal(decode(FIVE16, tiff(shallow)), shallow.astype(np.uint16) * 257)
    np.testing.assert_array_equal(decode(FIVE, tiff(deep)), np.rint(deep / 257).astype(np.uint8))


def test_decode_keeps_alpha_as_fourth_channel(zoo: dict[str, bytes]) -> None:
    pixels = decode(FOUR, zoo["alpha png"])
    np.testing.assert_array_equal(pixels[:, :, :3], decode(RGB, zoo["png"]))
    np.testing.assert_array_equal(pixels[:, 0, 3], np.linspace(0, 255, 97, dtype=np.uint8))


def test_decode_obeys_max_pixels(zoo: dict[str, bytes]) -> None:
    assert decode(DecodeImage(max_pixels=97 * 131), zoo["jpeg"]).shape == (97, 131, 3)
    tight = DecodeImage(max_pixels=97 * 131 - 1)
    with pytest.raises(DecodeError, match="131x97 pixels are more than DecodeImage's max_pixels, 12706"):
        decode(tight, zoo["jpeg"])
    with pytest.raises(DecodeError, match="131x97 pixels are more"):
        decode_by_dali(tight, [zoo["jpeg"]], "cpu")


def test_decode_rejects_huge_image_without_allocation(
    zoo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cv2, "imdecode", None)
    with pytest.raises(DecodeError, match="20000x20000"):
        decode(RGB, zoo["huge png"])


SMALL = ("grey png", "turned alpha png", "lzw tiff", "uint16 tiff of 5", "one pixel jpeg", "half a jpeg2000")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of tags that it skips
@settings(max_examples=200)
@given(data=st.data())
def test_decode_damaged_bytes_decodes_or_raises(zoo: dict[str, bytes], data: st.DataObject) -> None:
    """Whatever is in a file, the answer is pixels or a DecodeError."""
    encoded = bytearray(zoo[data.draw(st.sampled_from(SMALL))])
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, min(len(encoded), 400) - 1) | st.integers(0, len(encoded) - 1))
        encoded[place] = data.draw(st.integers(0, 255))
    spoilt = bytes(encoded[: data.draw(st.integers(1, len(encoded)) | st.just(len(encoded)))])
    for channels, dtype in ((3, "uint8"), (4, "uint8"), (5, "uint16")):
        try:
            read_header(spoilt)
            pixels = decode(DecodeImage(channels=channels, dtype=dtype, max_pixels=100_000), spoilt)
        except DecodeError:
            continue
        assert pixels.shape[2] == channels
        assert pixels.dtype == dtype


def test_jpeg_2000_with_several_headers_is_rejected_before_its_pixels_are_allocated() -> None:
    encoded = bytes(imagecodecs.jpeg2k_encode(np.zeros((5, 6, 3), np.uint8), codecformat="jp2"))
    at = encoded.index(b"jp2h") - 4
    (length,) = struct.unpack_from(">I", encoded, at)
    first = encoded[at : at + length]
    size = first.index(b"ihdr") + 4
    second = first[:size] + struct.pack(">2I", 1 << 20, 1 << 20) + first[size + 8 :]
    for boxes in (second + first, first + second):
        with pytest.raises(DecodeError):
            decode(DecodeImage(), encoded[:at] + boxes + encoded[at + length :])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_webp_is_upright_with_each_version_of_opencv(
    orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenCV 4.11 does not turn WebPs, and newer versions do."""
    # The chunk of the pixels has an even size. Others are rejected, because DALI can't decode them.
    photo = np.random.default_rng(0).integers(0, 256, (6, 14, 3), np.uint8)
    encoded = by_pillow(photo, "WEBP", lossless=True, exif=exif_of(orientation))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))))
    np.testing.assert_array_equal(decode(RGB, encoded), expected)
    imdecode = cv2.imdecode

    def without_turning(data: Any, flags: int) -> Any:
        return imdecode(data, flags | cv2.IMREAD_IGNORE_ORIENTATION)

    monkeypatch.setattr(cv2, "imdecode", without_turning)
    np.testing.assert_array_equal(decode(RGB, encoded), expected)

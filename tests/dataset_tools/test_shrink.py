"""Smaller images: same format, and the pixels of resizing the decoded image."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from zoo import make_zoo, noise, tiff, turned

from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError, Header
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.specs import DecodeImage
from ppcls.dataset_tools.shrink import scaled_size, shrink

MOST = 24


@pytest.fixture(scope="module")
def zoo() -> dict[str, bytes]:
    return make_zoo()


def header_of(encoded: bytes) -> Header | None:
    try:
        return read_header(encoded)
    except DecodeError:
        return None


def decoded(encoded: bytes, channels: int) -> np.ndarray | None:
    try:
        return decode(DecodeImage(channels=channels, dtype="uint16"), encoded)
    except DecodeError:
        return None


def averaged(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    channels = np.moveaxis(pixels, 2, 0)
    return np.dstack([cv2.resize(each, (width, height), interpolation=cv2.INTER_AREA) for each in channels])


def test_shrink_keeps_format_and_pixels(subtests: pytest.Subtests, zoo: dict[str, bytes]) -> None:
    checked = 0
    for name, encoded in zoo.items():
        header = header_of(encoded)
        if header is None or min(header.height, header.width) <= MOST:
            continue
        for channels in sorted({3, header.channels}):
            if (whole := decoded(encoded, channels)) is None:
                continue
            checked += 1
            with subtests.test(f"{name}, {channels} channels"):
                check_shrunk(name, encoded, whole)
    assert checked > 60


def check_shrunk(name: str, encoded: bytes, whole: np.ndarray) -> None:
    small = shrink(encoded, MOST, 95)
    assert small is not None
    before, after = read_header(encoded), read_header(small)
    assert (after.format, after.orientation) == (before.format, 1)
    channels = whole.shape[2]
    found = decoded(small, channels)
    assert found is not None
    assert found.shape == (*scaled_size(*whole.shape[:2], MOST), channels)
    error = np.abs(averaged(whole, *found.shape[:2]).astype(float) - found).mean() / 65535
    lossless_noise = name.startswith("uint16") or ("tiff of" in name and "uint8" not in name)
    assert error < (1e-4 if lossless_noise else 0.03)


@pytest.mark.parametrize("start", ["half a", "nothing", "text", "huge"])
def test_shrink_rejects_damaged_images(start: str, zoo: dict[str, bytes]) -> None:
    damaged = [encoded for name, encoded in zoo.items() if name.startswith(start)]
    assert damaged
    for encoded in damaged:
        with pytest.raises(DecodeError):
            shrink(encoded, MOST, 90)


def test_shrink_rejects_separate_planes(zoo: dict[str, bytes]) -> None:
    with pytest.raises(DecodeError, match="separate planes"):
        shrink(zoo["planar tiff"], MOST, 90)


def test_shrink_returns_none_for_small_images(zoo: dict[str, bytes]) -> None:
    assert shrink(zoo["jpeg"], 97, 90) is None
    small = shrink(zoo["jpeg"], 96, 90)
    assert small is not None
    assert Image.open(io.BytesIO(small)).size == (130, 96)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 500))
def test_scaled_size_keeps_proportions(height: int, width: int, most: int) -> None:
    sides = scaled_size(height, width, most)
    assert min(sides) == most
    assert abs(max(sides) - max(height, width) * most / min(height, width)) <= 0.5
    assert (height <= width) == (sides[0] <= sides[1]) or sides[0] == sides[1]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_shrink_applies_orientation(orientation: int, scenes: dict[str, Image.Image]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind, mode in (("JPEG", "RGB"), ("PNG", "RGB"), ("PNG", "I;16")):
        file = io.BytesIO()
        image = scenes["odd"] if mode == "RGB" else Image.fromarray(noise(1, height=60, width=80)[:, :, 0])
        image.save(file, kind, exif=exif)
        small = shrink(file.getvalue(), 40, 95)
        assert small is not None
        whole, found = decoded(file.getvalue(), 3), decoded(small, 3)
        assert whole is not None
        assert found is not None
        error = np.abs(averaged(whole, *found.shape[:2]).astype(float) - found).mean() / 65535
        assert error < 0.02, "turned otherwise, it would be ten times as much"


def test_shrink_uses_quality_and_keeps_profile(zoo: dict[str, bytes]) -> None:
    file = io.BytesIO()
    photo = Image.open(io.BytesIO(zoo["png"]))
    photo.save(file, "JPEG", icc_profile=b"a profile", exif=turned())
    sizes = []
    for quality in (30, 60, 95):
        small = shrink(file.getvalue(), MOST, quality)
        assert small is not None
        sizes.append(len(small))
        image = Image.open(io.BytesIO(small))
        assert image.info["icc_profile"] == b"a profile"
        assert not image.getexif()
    assert sizes == sorted(set(sizes))


def test_shrink_does_not_weight_colours_by_alpha() -> None:
    """Training leaves alpha out, so what lies below it must not be weighed by it."""
    pixels = np.dstack([np.full((60, 60, 3), 200, np.uint8), np.tile([0, 255], (60, 30)).astype(np.uint8)])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    small = shrink(file.getvalue(), 20, 90)
    assert small is not None
    assert (np.asarray(Image.open(io.BytesIO(small)).convert("RGB")) == 200).all()


def test_shrink_keeps_tiff_uncompressed(tmp_path: Path) -> None:
    small = shrink(tiff(noise(6)), MOST, 90)
    assert small is not None
    assert tifffile.TiffFile(io.BytesIO(small)).pages[0].tags["Compression"].value == 1
    packed = shrink(tiff(noise(6), compression="lzw"), MOST, 90)
    assert packed is not None
    assert tifffile.TiffFile(io.BytesIO(packed)).pages[0].tags["Compression"].value == 8

"""Files that are no supported image are named as what they are, by both loaders."""

from __future__ import annotations

import io

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from zoo import encode

from ppcls.data.bad_images.search import describe_dali_error
from ppcls.data.images.contents import describe_contents, describe_damage
from ppcls.data.images.decode import decode
from ppcls.data.images.header import NO_IMAGE, DecodeError
from ppcls.data.transforms.specs import DecodeImage

PIXELS = np.zeros((16, 16, 3), np.uint8)
IMAGE = Image.fromarray(PIXELS)
PAGE = "<!-- proxy -->\n<!DOCTYPE html>\n<html><body>404 Not Found</body></html>"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
FILES = {
    "GIF": encode(IMAGE, "GIF"),
    "AVIF": encode(IMAGE, "AVIF"),
    "HEIC": b"\0\0\0\x1cftypheic\0\0\0\0mif1heic" + bytes(40),
    "JPEG XL": imagecodecs.jpegxl_encode(PIXELS),
    "JPEG XR": imagecodecs.jpegxr_encode(PIXELS),
    "QOI": imagecodecs.qoi_encode(PIXELS),
    "Photoshop": b"8BPS\0\x01" + bytes(40),
    "ICO": encode(IMAGE, "ICO"),
    "DDS": encode(IMAGE, "DDS"),
    "SGI": encode(IMAGE, "SGI"),
    "SVG": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
    "DICOM": bytes(128) + b"DICM" + bytes(40),
    "Git LFS": POINTER.encode(),
    "HTML": PAGE.encode(),
    "PDF": b"%PDF-1.7\n",
    "ZIP": b"PK\x03\x04" + bytes(40),
    "NumPy": b"\x93NUMPY\x01\0" + bytes(40),
    "XCF": b"gimp xcf v011\0" + bytes(40),
    "NIfTI": (348).to_bytes(4, "little") + bytes(340) + b"n+1\0" + bytes(10),
    "XML": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    "JSON": b'{"error": {"code": 403}}',
    "error message": b"404: Not Found",
    "archive": bytes(257) + b"ustar\0" + bytes(250),
    "Parquet": b"PAR1" + bytes(40),
    "AppleDouble": b"\0\x05\x16\x07" + bytes(40),
    "video": b"\0\0\0\x18ftypmp42" + bytes(40),
    "Base64": b"/9j/4AAQSkZJRgABAQAAAQABAAD/2wBD",
    "12 bits": imagecodecs.jpeg_encode(PIXELS.astype(np.uint16) + 9, bitspersample=12),
    "zero bytes": bytes(500),
}


@pytest.mark.parametrize("name", FILES)
def test_reason_names_the_contents(name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(DecodeImage(), FILES[name])
    assert name in str(caught.value)
    assert str(caught.value) != NO_IMAGE


def test_each_content_has_another_reason() -> None:
    reasons = {describe_contents(data) for name, data in FILES.items() if name != "12 bits"}
    assert len(reasons) == len(FILES) - 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "JPEG2000"])
def test_truncated_and_damaged_files_differ(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    whole = encode(Image.fromarray(noise), kind)
    assert describe_damage(kind, whole[: len(whole) // 2]).startswith(f"the {kind} file is truncated")
    assert describe_damage(kind, whole).startswith(f"the {kind} file is damaged")


@given(data=st.binary(max_size=300))
def test_any_bytes_are_described(data: bytes) -> None:
    assert describe_contents(data)


def test_hostile_text_is_described() -> None:
    # A pattern that backtracks would need years.
    for data in (b"<!--" * 1000, b"<!-->" * 1000, b" " * 5000 + b"<", b"[" * 5000, b"{[" * 3000):
        assert describe_contents(data) == NO_IMAGE
    for data in (b"<?xml" * 1000, b"<?xml>" * 1000):
        assert describe_contents(data).startswith("an XML document")


def test_messages_of_dalis_decoders_are_replaced() -> None:
    error = (
        "Critical error in pipeline:\nError in CPU operator `nvidia.dali.fn.decoders.image`,\nencountered:\n"
        "[/opt/dali/decoders.cc:5] nvImageCodec failure: '#3'\nCurrent pipeline object is no longer valid."
    )
    reason = describe_dali_error(error)
    assert reason.startswith("DALI can't decode this kind of image, although OpenCV can")
    assert "nvImageCodec" not in reason


def test_an_image_file_is_not_misnamed() -> None:
    file = io.BytesIO()
    IMAGE.save(file, "PNG")
    assert decode(DecodeImage(), file.getvalue()).shape == (16, 16, 3)

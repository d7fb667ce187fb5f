"""Reads the headers of JPEG files (ITU T.81, annex B)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ppcls.data.images.header import MAX_SCANS, DecodeError, Header, check_metadata

MIN_SCAN_BYTES = 10  # size of the shortest header of a scan

# Names of the frame markers, except DHT, JPG and DAC, which lie between them. All loaders decode baseline,
# extended, progressive and lossless frames.
_FRAMES = {
    0xC0: "",
    0xC1: "",
    0xC2: "",
    0xC3: "",
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical JPEG"),
    **dict.fromkeys((0xC9, 0xCA, 0xCB), "arithmetic-coded JPEG"),
    0xF7: "JPEG-LS",
}
_COLOURS = {1: "grey", 3: "RGB"}  # by the number of components
# JPEG markers SOS, EOI and APP14, which follow a byte 0xFF
_SCAN = 0xDA
_END = 0xD9
_ADOBE = 0xEE
_LOSSLESS = 0xC3
_TRANSFORM = 11  # position of the colour transform in Adobe's segment
_TEMPORARY = 0x01  # the only marker that `_MARKER` matches and that has no length
# Matches the next marker, after any fill bytes. Stuffed bytes and restart markers don't match (ITU T.81,
# B.1.1).
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")


def read_jpeg_header(data: bytes) -> Header:
    """Reads the header of a JPEG. If the file has several images, this is the first one.

    Raises:
        ValueError: The file has no frame header.
        DecodeError: The frame is of a kind that some loaders don't decode.
    """
    adobe = False
    for marker, begin, end in _segments(data):
        if marker == _ADOBE:
            adobe = data[begin : begin + 5] == b"Adobe"
        elif marker in _FRAMES and end - begin >= 6:
            return _read_frame(data, begin, _FRAMES[marker], adobe)
    raise ValueError("no frame header")


def find_gpu_obstacle(data: memoryview) -> str | None:
    """Returns the kind of a JPEG that the decoder of GPUs reads with wrong colours; None for other files.

    nvJPEG converts all files with three components from YCbCr. libjpeg, and with it all other decoders, keeps
    the components as RGB if Adobe's segment says so, or if there is no such segment and they are named R, G
    and B. Lossless files differ on a GPU as well (both seen on an H200 with DALI 2.4).
    """
    transform = None
    for marker, begin, end in _segments(data):
        if marker == _ADOBE and bytes(data[begin : begin + 5]) == b"Adobe" and begin + _TRANSFORM < len(data):
            transform = data[begin + _TRANSFORM]
        elif marker in _FRAMES and min(end, len(data)) - begin >= 6:
            if marker == _LOSSLESS:
                return "lossless JPEG"
            names = bytes(data[begin + 6 : begin + 15 : 3])
            stored_as_rgb = transform == 0 or (transform is None and names == b"RGB")
            return "JPEG that is stored as RGB" if data[begin + 5] == 3 and stored_as_rgb else None
    return None


def _read_frame(data: bytes, begin: int, kind: str, adobe: bool) -> Header:
    if kind:
        raise DecodeError(f"a {kind} file is not supported; convert the image to a baseline JPEG")
    components = data[begin + 5]
    # Without Adobe's marker, nothing says whether the inks are inverted. DALI and OpenCV answer differently.
    inks = "CMYK" if adobe else "CMYK without Adobe marker"
    colours = inks if components == 4 else _COLOURS.get(components, f"{components} components")
    return Header(
        "JPEG",
        height=int.from_bytes(data[begin + 1 : begin + 3], "big"),
        width=int.from_bytes(data[begin + 3 : begin + 5], "big"),
        channels=1 if components == 1 else 3,
        colours=colours,
        bits=data[begin],
        scans=count_scans(data),
    )


def count_scans(encoded: Any) -> int:
    """Returns the number of scans of a JPEG, or an upper bound if that is at most ``MAX_SCANS``.

    The upper bound also counts scans of embedded previews and of data after the image.

    Args:
        encoded: Bytes or memoryview of the file.
    """
    # Compares pairs of bytes, at even and at odd positions, as 16-bit numbers. This is ten times as fast as
    # bytes.count.
    pairs = (
        np.frombuffer(encoded, "<u2", (len(encoded) - start) // 2, start)
        for start in (0, 1)
        if len(encoded) > start + 1
    )
    bound = sum(int(np.count_nonzero(pair == _SCAN << 8 | 0xFF)) for pair in pairs)
    if bound <= MAX_SCANS:
        return bound
    return sum(marker == _SCAN for marker, _, _ in _segments(bytes(encoded)))


def _segments(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yields marker, begin and end of the content of each segment, up to the end marker of the image.

    Raises:
        DecodeError: See `check_metadata`.
    """
    at = 2  # after the SOI marker
    count = 0
    scanned = False
    while (match := _MARKER.search(data, at)) and (marker := match[1][0]) != _END:
        begin = at = match.end()
        if marker != _TEMPORARY:
            at = begin + int.from_bytes(data[begin : begin + 2], "big")  # includes the length itself
            begin += 2
        count += 1
        scanned |= marker == _SCAN
        check_metadata("JPEG", count, 0 if scanned else min(at, len(data)))
        yield marker, begin, at

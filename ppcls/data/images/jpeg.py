"""Reads the headers of JPEG files (ITU T.81, annex B)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import MAX_SCANS, DecodeError, Header, check_metadata
from ppcls.data.images.tags import EXIF_PREFIX, read_orientation

MIN_SCAN_BYTES = 10  # size of the shortest header of a scan

# Names of the frame markers, except DHT, JPG and DAC, which lie between them. All loaders decode baseline,
# extended, progressive and lossless frames.
_FRAMES = {
    0xC0: "",
    0xC1: "",
    0xC2: "",
    0xC3: "",
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "a hierarchical JPEG"),
    **dict.fromkeys((0xC9, 0xCA, 0xCB), "an arithmetic-coded JPEG"),
    0xF7: "a JPEG-LS",
}
_COLOURS = {1: "grey", 3: "RGB"}  # by the number of components
# JPEG markers SOS, EOI, APP1 and APP14, which follow a byte 0xFF
_SCAN = 0xDA
_END = 0xD9
_APPLICATION = 0xE1
_ADOBE = 0xEE
_LOSSLESS = 0xC3
_TRANSFORM = 11  # position of the colour transform in Adobe's segment
_TEMPORARY = 0x01  # the only marker that `_MARKER` matches and that has no length
_MAX_EXIFS = 16  # EXIF segments. Writers write one; each can have 5,000 tags, which are read in Python.
# Matches the next marker. Stuffed bytes and restart markers don't match (ITU T.81, B.1.1). Of the fill bytes
# before a marker, only the last one matches: with "\xff+", a search in fill bytes takes quadratic time.
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")


@dataclass
class _Frame:
    """The frame header of a JPEG, and what precedes it.

    Attributes:
        marker: Second byte of the frame's marker.
        begin: Position of the frame's content: bits per sample, height, width and components.
        adobe: Whether there is a segment of Adobe.
        transform: Colour transform of Adobe's segment; None if it is missing.
        exifs: Content of the EXIF segments.
    """

    marker: int = 0
    begin: int = 0
    adobe: bool = False
    transform: int | None = None
    exifs: list[bytes] = field(default_factory=list)

    @property
    def is_lossless(self) -> bool:
        """Whether the pixels are stored without loss."""
        return self.marker == _LOSSLESS


def read_jpeg_header(data: bytes) -> Header:
    """Reads the header of a JPEG. If the file has several images, this is the first one.

    Raises:
        ValueError: The file has no frame header.
        DecodeError: See `check_frame`.
    """
    frame = _find_frame(data)
    if frame is None:
        raise ValueError("no frame header")
    _check_frame(data, frame)
    begin = frame.begin
    components = data[begin + 5]
    # Without Adobe's marker, nothing says whether the inks are inverted. DALI and OpenCV answer differently.
    inks = "CMYK" if frame.adobe else "CMYK without Adobe marker"
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


def check_frame(data: memoryview) -> None:
    """Checks that all loaders decode a JPEG to the same pixels.

    Raises:
        DecodeError: The frame is of a kind that some loaders don't decode, or several EXIF segments have
            different orientations: DALI applies the last one, and other readers the first one.
    """
    frame = _find_frame(data)
    if frame is not None:
        _check_frame(data, frame)


def find_gpu_obstacle(data: memoryview) -> str | None:
    """Returns the kind of a JPEG that the decoder of GPUs reads with wrong colours; None for other files.

    nvJPEG converts all files with three components from YCbCr. libjpeg, and with it all other decoders, keeps
    the components as RGB if Adobe's segment says so, or if there is no such segment and they are named R, G
    and B. Lossless files differ on a GPU as well (both seen on an H200 with DALI 2.4).
    """
    frame = _find_frame(data)
    if frame is None:
        return None
    if frame.is_lossless:
        return "lossless JPEG"
    names = bytes(data[frame.begin + 6 : frame.begin + 15 : 3])
    stored_as_rgb = frame.transform == 0 or (frame.transform is None and names == b"RGB")
    return "JPEG that is stored as RGB" if data[frame.begin + 5] == 3 and stored_as_rgb else None


def read_jpeg_orientation(data: bytes) -> int:
    """Returns the EXIF orientation of a JPEG, 1..8; 1 if it is missing or damaged."""
    frame = _find_frame(data)
    return _read_orientation(frame.exifs[0]) if frame is not None and frame.exifs else 1


def _find_frame(data: bytes | memoryview) -> _Frame | None:
    """Returns the first frame; None if there is no complete frame header.

    Raises:
        DecodeError: There are too many segments or bytes before the frame.
    """
    frame = _Frame()
    for marker, begin, end in _segments(data):
        if marker == _ADOBE and bytes(data[begin : begin + 5]) == b"Adobe":
            frame.adobe = True
            if begin + _TRANSFORM < len(data):
                frame.transform = data[begin + _TRANSFORM]
        elif marker == _APPLICATION and bytes(data[begin : begin + 6]) == EXIF_PREFIX:
            frame.exifs.append(bytes(data[begin:end]))
            if len(frame.exifs) > _MAX_EXIFS:
                raise DecodeError(
                    f"expected a JPEG of at most {_MAX_EXIFS} EXIF segments, found more; save the image again"
                )
        elif marker in _FRAMES and min(end, len(data)) - begin >= 6:
            frame.marker = marker
            frame.begin = begin
            return frame
    return None


def _check_frame(data: bytes | memoryview, frame: _Frame) -> None:
    if kind := _FRAMES[frame.marker]:
        raise DecodeError(f"{kind} file is not supported; convert the image to a baseline JPEG")
    if frame.is_lossless and data[frame.begin + 5] == 1:  # OpenCV and DALI fail
        raise DecodeError("a lossless JPEG of grey is not supported; convert the image to a baseline JPEG")
    if bytes(data[frame.begin + 1 : frame.begin + 3]) == b"\0\0":
        raise DecodeError(
            "a JPEG that stores its height after its pixels is not supported; save the image again"
        )
    if len(frame.exifs) > 1:
        orientations = [_read_orientation(exif) for exif in frame.exifs]
        if len(set(orientations)) > 1:
            raise DecodeError(
                f"the JPEG has several EXIF segments with different orientations, {orientations}; save the "
                "image upright"
            )


def _read_orientation(exif: bytes) -> int:
    try:
        orientation = read_orientation(exif)
    except (DecodeError, ValueError):  # readers ignore damaged EXIF data
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def count_scans(encoded: Any) -> int:
    """Returns the number of scans of a JPEG, or an upper bound if that is at most ``MAX_SCANS``.

    The upper bound also counts scans of embedded previews and of data after the image.

    Args:
        encoded: Bytes or memoryview of the file.
    """
    bound = count_scan_markers(encoded)
    if bound <= MAX_SCANS:
        return bound
    return sum(marker == _SCAN for marker, _, _ in _segments(bytes(encoded)))


def count_scan_markers(encoded: Any) -> int:
    """Returns how often the marker of a scan occurs in a file, also in other data such as comments.

    Args:
        encoded: Bytes or memoryview of the file.
    """
    return sum(int(np.count_nonzero(matches)) for matches in _match_scans(encoded))


def find_scan_markers(encoded: Any) -> NDArray[np.int64]:
    """Returns the positions of the markers that `count_scan_markers` counts, in ascending order.

    Args:
        encoded: Bytes or memoryview of the file.
    """
    even, odd = (np.flatnonzero(matches) for matches in _match_scans(encoded))
    return np.sort(np.concatenate([2 * even, 2 * odd + 1]))


def _match_scans(encoded: Any) -> Iterator[NDArray[np.bool_]]:
    """Yields whether the marker of a scan is at each even position, and then the same for odd positions.

    Comparing pairs of bytes as 16-bit numbers is ten times as fast as bytes.count.
    """
    size = len(encoded)
    for start in (0, 1):
        pairs = np.frombuffer(encoded, "<u2", max(0, size - start) // 2, min(start, size))
        yield pairs == _SCAN << 8 | 0xFF


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

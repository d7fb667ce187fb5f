"""Reads single tags of TIFF files and of EXIF data (TIFF 6.0, section 2), without reading the others."""

from __future__ import annotations

import struct

import numpy as np

from ppcls.data.images.header import DecodeError, check_metadata

_ORIENTATION = 274
EXIF_PREFIX = b"Exif\0\0"
_BIG = 43  # version number of BigTIFF
# dtypes of the unsigned integer types: BYTE, SHORT, LONG, IFD, LONG8 and IFD8
_INTEGERS = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
_OTHER_SIZES = {5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 17: 8}  # bytes of a value of the other types; else 1
_SIGNED = {6: "i1", 8: "i2", 9: "i4", 17: "i8"}


class Tags:
    """The tags of the first directory of a TIFF file or of EXIF data.

    Only the values that `values` returns are read. Several tags may share their bytes, so 32 MB can claim to
    contain gigabytes of values.

    Args:
        data: Bytes of the file, or EXIF data without its prefix.

    Attributes:
        last: Whether there is no other directory after the first one.

    Raises:
        ValueError: The directory is damaged.
        DecodeError: The directory has too many tags, or a tag twice, or all values together are too large.
            If a TIFF has for example two widths, some readers use the first one and others the last one.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        order = {b"II": "<", b"MM": ">"}.get(data[:2])
        if order is None:
            raise ValueError("no byte order")
        self._order = order
        big = self._unpack("H", 2) == _BIG
        self._inline = 8 if big else 4  # bytes of a value that is stored in its entry
        start = self._unpack("Q", 8) if big else self._unpack("I", 4)
        count = self._unpack("Q" if big else "H", start)
        check_metadata("TIFF", count, 0)
        size = order + ("u8" if big else "u4")
        entry = np.dtype(
            [("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", size), ("value", f"V{self._inline}")]
        )
        begin = start + (8 if big else 2)
        end = begin + count * entry.itemsize
        if end > len(data):
            raise ValueError("the directory is truncated")
        self.last = self._unpack("Q" if big else "I", end) == 0
        entries = np.frombuffer(data, entry, count, begin)
        self._entries = {
            tag: (kind, length, begin + entry.itemsize * row + entry.itemsize - self._inline)
            for row, (tag, kind, length, _) in enumerate(entries.tolist())
        }
        if len(self._entries) < count:
            raise DecodeError("the TIFF has a repeated tag; save the image again")
        sizes = (length * _size(kind) for kind, length, _ in self._entries.values())
        check_metadata("TIFF", 0, sum(size for size in sizes if size > self._inline))

    def __contains__(self, tag: int) -> bool:
        """Returns whether the directory has a tag."""
        return tag in self._entries

    def count(self, tag: int) -> int:
        """Returns the number of values of a tag, 0 if it is missing."""
        return self._entries[tag][1] if tag in self._entries else 0

    def values(self, tag: int, default: int) -> list[int]:
        """Returns the integers of a tag, or ``[default]`` if the tag is missing.

        Raises:
            ValueError: The values are no integers, or are not in the file.
        """
        if tag not in self._entries:
            return [default]
        kind, count, at = self._entries[tag]
        code = _INTEGERS.get(kind) or _SIGNED.get(kind)
        if code is None or not count:
            raise ValueError(f"tag {tag} has no integers")
        dtype = np.dtype(self._order + code)
        if count * dtype.itemsize > self._inline:
            at = self._unpack("Q" if self._inline == 8 else "I", at)
        if at + count * dtype.itemsize > len(self._data):
            raise ValueError(f"the values of tag {tag} are not in the file")
        values: list[int] = np.frombuffer(self._data, dtype, count, at).tolist()
        return values

    def value(self, tag: int, default: int) -> int:
        """Returns the only integer of a tag, or ``default`` if the tag is missing.

        Raises:
            ValueError: See `values`, or the tag has several values.
        """
        if self.count(tag) > 1:
            raise ValueError(f"tag {tag} has several values")
        return self.values(tag, default)[0]

    def _unpack(self, code: str, at: int) -> int:
        try:
            return int(struct.unpack_from(self._order + code, self._data, at)[0])
        except (struct.error, OverflowError):  # OverflowError: an offset of 64 bits
            raise ValueError("the directory is truncated") from None


def _size(kind: int) -> int:
    code = _INTEGERS.get(kind)
    return _OTHER_SIZES.get(kind, 1) if code is None else np.dtype(code).itemsize


def read_orientation(exif: bytes) -> int:
    """Returns the orientation in EXIF data, 1..8; 1 if it is missing (EXIF 2.32, 4.6.4).

    Raises:
        ValueError: The data is damaged.
        DecodeError: See `Tags`.
    """
    exif = exif.removeprefix(EXIF_PREFIX)
    return Tags(exif).value(_ORIENTATION, 1) if exif else 1

"""Counts and describes the files in folders of images that are not images of a known format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

# Endings of pictures, photographs of cameras and documents that other programs can convert.
_OTHER_PICTURES = re.compile(
    r"\.(heic|heif|avif|gif|svg|pdf|psd|jxl|jfif|dng|cr2|cr3|nef|arw|orf|rw2|dcm|czi|nd2|lif)"
)


def count_skipped(files: Iterable[str], extensions: tuple[str, ...]) -> Counter[str]:
    """Counts files without one of the extensions, per extension such as ``.gif``. Ignores hidden files."""
    others = (file for file in files if not file.lower().endswith(extensions) and not file.startswith("."))
    return Counter(Path(file).suffix.lower() or "without an ending" for file in others)


def describe_skipped(root: Path, skipped: Mapping[str, int]) -> str:
    """Returns a log line about skipped files that are not images, or "" if no file was skipped."""
    files = ", ".join(f"{count} {ending}" for ending, count in sorted(skipped.items()))
    if not files:
        return ""
    return f"{root}: skipped files that are not images of a known format: {files}{advise_to_convert(skipped)}"


def advise_to_convert(skipped: Mapping[str, int]) -> str:
    """Returns the end of a message about skipped files: which of them are pictures; "" if none are."""
    pictures = sorted(ending for ending in skipped if _OTHER_PICTURES.fullmatch(ending))
    return f"; to use the pictures in {', '.join(pictures)}, convert them to JPEG or PNG" if pictures else ""

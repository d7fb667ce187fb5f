"""What smaller images gain: how long decoding takes, before and after."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError, read_header
from ppcls.data.transforms.specs import DecodeImage

_IMAGES = 32
_ROUNDS = 3


@dataclass(frozen=True)
class DecodeTime:
    """Mean seconds an image, on one thread, from memory, by OpenCV or tifffile.

    Attributes:
        images: How many were timed.
        before: Seconds for the source.
        after: Seconds for what was made of it.
    """

    images: int
    before: float
    after: float


def time_decoding(pairs: Sequence[tuple[Path, Path]]) -> DecodeTime | None:
    """Decodes some images, spread evenly, before and after in turns; the best of three times counts.

    Args:
        pairs: Files before and after.

    Returns:
        The means; None where none of the images can be decoded for training.
    """
    count = min(_IMAGES, len(pairs))
    times = []
    for number in range(count):
        before, after = (path.read_bytes() for path in pairs[len(pairs) * number // count])
        try:
            rounds = [(_seconds(before), _seconds(after)) for _ in range(_ROUNDS)]
        except DecodeError:  # a kind that training refuses
            continue
        times.append([min(each) for each in zip(*rounds, strict=True)])
    if not times:
        return None
    sums = [sum(each) for each in zip(*times, strict=True)]
    return DecodeTime(len(times), sums[0] / len(times), sums[1] / len(times))


def _seconds(encoded: bytes) -> float:
    header = read_header(encoded)
    spec = DecodeImage(channels=3 if header.coloured else header.channels)
    began = time.perf_counter()
    decode(spec, encoded)
    return time.perf_counter() - began

"""Warns if a model would see other pixel values in evaluation or prediction than in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppcls.data.transforms.base import ImageState, Transform

_LARGEST = {"uint8": 255.0, "uint16": 65535.0}  # largest pixel of each type
_TOLERANCE = 0.02  # of the distance between the values of black and white
# Black and white are usually 2 to 5 apart, or 255 without normalization. Cameras with 16 bits may use a small
# part of the range, so their values have no upper limit.
_LEAST_CONTRAST = 0.2
_LARGEST_VALUE = 300.0

Values = tuple[float, ...]


@dataclass(frozen=True)
class PixelValues:
    """What `NormalizeImage` makes of pixels.

    Attributes:
        rgb: Whether the channels are red, green and blue, in this order.
        black: Value of a black pixel in each channel.
        white: Value of a white pixel in each channel.
        is_byte: Whether pixels have 8 bits.
    """

    rgb: bool
    black: Values
    white: Values
    is_byte: bool


def pixel_warnings(chains: Mapping[str, Sequence[Transform]]) -> Iterator[str]:
    """Yields lines about pixel values that are implausible, or that differ from those of training.

    Args:
        chains: Lists of transforms, by the section of the config, see `Config.chains`. The first one is the
            reference, usually ``DataLoader.Train``.
    """
    values = {place: scaled for place, specs in chains.items() if (scaled := _find_values(specs)) is not None}
    if not values:
        return
    reference, expected = next(iter(values.items()))
    if text := _implausible(expected):
        yield (
            f"{reference}: NormalizeImage maps black pixels to {_show(expected.black)} and white ones to "
            f"{_show(expected.white)}, {text}; mean and std are in units of pixel * scale, such as 0.485 "
            "with scale 1.0/255.0, or 123.7 with scale 1.0"
        )
    for place, actual in values.items():
        if actual.rgb != expected.rgb and len(actual.black) > 1:
            yield (
                f"{place}: the channels are {_order(actual)}, but {_order(expected)} in {reference}, so the "
                "model sees other colours; set the same DecodeImage.to_rgb"
            )
        if not _is_close(actual, expected):
            yield (
                f"{place}: NormalizeImage maps black pixels to {_show(actual.black)} and white ones to "
                f"{_show(actual.white)}, but {reference} to {_show(expected.black)} and "
                f"{_show(expected.white)}; set the same scale, mean and std"
            )


def _find_values(specs: Sequence[Transform]) -> PixelValues | None:
    """Returns the pixel values after a chain; None if the range of the pixels is unknown."""
    state = ImageState()
    for spec in specs:
        if spec.affine is not None:
            largest = _LARGEST.get(state.dtype)
            if largest is None:
                return None
            factors, offsets = (
                values if len(values) > 1 else values * state.channels for values in spec.affine
            )
            white = tuple(largest * factor + offset for factor, offset in zip(factors, offsets, strict=True))
            return PixelValues(state.rgb, offsets, white, state.dtype == "uint8")
        state = spec.after(state)
    return None


def _implausible(values: PixelValues) -> str:
    """Returns why the values can't be right; an empty text if they can."""
    contrast = min(abs(white - black) for black, white in zip(values.black, values.white, strict=True))
    if contrast < _LEAST_CONTRAST:
        return "so that images hardly differ"
    if values.is_byte and max(map(abs, (*values.black, *values.white))) > _LARGEST_VALUE:
        return "which is far from the usual range of -3 to 3"
    return ""


def _is_close(actual: PixelValues, expected: PixelValues) -> bool:
    if len(actual.black) != len(expected.black):
        return True  # another number of channels is an error elsewhere
    limits = [
        _TOLERANCE * abs(white - black) for black, white in zip(expected.black, expected.white, strict=True)
    ]
    pairs = [
        (one, other, limit)
        for mine, theirs in ((actual.black, expected.black), (actual.white, expected.white))
        for one, other, limit in zip(mine, theirs, limits, strict=True)
    ]
    return all(abs(one - other) <= limit for one, other, limit in pairs)


def _show(values: Values) -> str:
    texts = list(dict.fromkeys(f"{value:.3g}" for value in values))
    return texts[0] if len(texts) == 1 else f"[{', '.join(f'{value:.3g}' for value in values)}]"


def _order(values: PixelValues) -> str:
    return "red, green, blue" if values.rgb else "blue, green, red"

"""Rectangles, holes, grids and patches by numpy."""

from __future__ import annotations

import numpy as np

from ppcls.data.transforms.numpy_ops.chain import Array, apply
from ppcls.data.transforms.specs.decisions import Decided
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, HideAndSeek, RandomErasing, noise_bank


@apply.register
def _(spec: RandomErasing, image: np.ndarray, decided: Decided) -> Array:
    (top, left), (height, width) = (each.astype(int) for each in decided[:2])
    if not height:
        return image
    if spec.mode == "pixel":
        bank = noise_bank()
        rows, columns = (np.arange(a, a + n) for a, n in ((top, height), (left, width)))
        begin = decided[2]
        fill = bank[np.ix_((begin[0] + rows) % len(bank), (begin[1] + columns) % len(bank))]
    else:
        fill = decided[2] if spec.mode == "rand" else np.asarray(spec.mean)
    erased = image.copy()
    erased[top : top + height, left : left + width] = fill
    return erased


def _fill(image: np.ndarray, decided: Decided, fill: tuple[float, ...]) -> Array:
    starts, sizes = (each.astype(int).reshape(-1, 2) for each in decided)
    there, colour, erased = sizes.all(axis=1), np.asarray(fill), image.copy()
    for (top, left), (height, width) in zip(starts[there], sizes[there], strict=True):
        erased[top : top + height, left : left + width] = colour
    return erased


@apply.register
def _(spec: Cutout, image: np.ndarray, decided: Decided) -> Array:
    return _fill(image, decided, spec.fill_value)


@apply.register
def _(spec: HideAndSeek, image: np.ndarray, decided: Decided) -> Array:
    return _fill(image, decided, (0,))


@apply.register
def _(spec: GridMask, image: np.ndarray, decided: Decided) -> Array:
    tile, share, angle, *shifts = (np.float32(each) for each in decided)
    along, across = np.cos(angle) / tile, np.sin(angle) / tile
    left, top = (shift / tile for shift in shifts)
    y, x = (np.arange(side, dtype=np.float32) for side in image.shape[:2])
    column = x[None] * along - (y * across)[:, None] - left
    row = x[None] * across + (y * along)[:, None] - top
    square = (column - np.floor(column) < share) & (row - np.floor(row) < share)
    kept = square if spec.mode == 0 else ~square
    return np.asarray(image * kept[:, :, None].astype(image.dtype))

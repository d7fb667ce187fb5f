"""Defines transforms that erase parts of an image: rectangles, holes, a grid or patches.

These transforms may be placed before or after NormalizeImage. They may also be placed after ToCHWImage,
because `plan_chain` moves ToCHWImage to the end.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from ppcls.config.base.fields import Count, Fraction, Index, NonNegative, Positive
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide
from ppcls.data.transforms.specs.fields import (
    Fill,
    bernoulli,
    check_fill,
    need_pixels,
    need_rgb,
    uniform_between,
)
from ppcls.data.transforms.specs.rng import normals, uniforms

_NONE = BeforeValidator(lambda value: None if value == "none" else value)  # PaddleClas's spelling
_WHOLE_TILE = 2.0  # share of a tile's side for which a square covers the whole tile
_BANK_SIDE = 512
_BANK_EPOCH = 2**32  # larger than any epoch of a run
_MAX_PATCHES = 40  # per row; DALI's operator on a GPU supports 1,706 patches in total


def _bank(depth: int) -> NDArray[np.float32]:
    """Returns uniform random numbers that are the same in all runs, [512, 512 * depth] float32."""
    return uniforms(0, _BANK_EPOCH, np.arange(_BANK_SIDE), depth * _BANK_SIDE)


@cache
def noise_bank() -> NDArray[np.float32]:
    """Returns standard normal random numbers, the noise of `RandomErasing`, [512, 512, 3] float32."""
    return np.ascontiguousarray(normals(_bank(4)).reshape(_BANK_SIDE, _BANK_SIDE, 4)[:, :, :3])


@cache
def coin_bank() -> NDArray[np.float32]:
    """Returns uniform random numbers, of which `HideAndSeek` uses one per patch, [512, 512] float32."""
    return _bank(1)


class RandomErasing(Transform):
    """Fills a random rectangle in some of the images (Zhong et al. 2017).

    The area of the rectangle, as a share of the image's area, is uniform between ``sl`` and ``sh``. The
    aspect ratio, height / width, is uniform between ``r1`` and 1 / ``r1``, limited to rectangles that fit
    into the image, so no further attempts are necessary. All positions of the rectangle are equally likely.
    """

    EPSILON: Fraction = 0.5
    """Share of the images in which a rectangle is filled."""
    sl: Fraction = 0.02
    """Minimum area of the rectangle, as a share of the image's area."""
    sh: Fraction = 0.4
    """Maximum area of the rectangle, as a share of the image's area."""
    r1: Positive = 0.3
    """Minimum aspect ratio, height / width, at most 1; the maximum is 1 / r1."""
    mean: Fill = (0.0,)
    """Pixel value for `mode: const`: one number for all channels, or one per channel."""
    attempt: Count = 100
    """No effect, accepted for compatibility with PaddleClas; every rectangle fits."""
    use_log_aspect: bool = False
    """Draw the logarithm of the aspect ratio uniformly, instead of the ratio itself."""
    mode: Literal["const", "rand", "pixel"] = "const"
    """Filling of the rectangle: `const`: the value of `mean`; `rand`: one normally distributed colour;
    `pixel`: normally distributed noise."""

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers: five for the rectangle, four for a colour, two for the noise."""
        return 5 + {"const": 0, "rand": 4, "pixel": 2}[self.mode]

    @model_validator(mode="after")
    def _check_ranges(self) -> RandomErasing:
        if self.sl > self.sh:
            raise ValueError(f"expected sl <= sh, got {self.sl} and {self.sh}")
        if self.r1 > 1:
            raise ValueError(f"expected r1 <= 1, got {self.r1}")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_pixels(state)
        if self.mode == "const":
            check_fill("mean", self.mean, state)
        elif not state.normalized:
            raise ValueError(
                f"mode {self.mode} needs normalized images; put this transform after NormalizeImage"
            )
        elif state.channels != 3:
            raise ValueError(f"mode {self.mode} needs 3 channels, but the image has {state.channels}")
        return state


@decide.register
def decide_rectangle(spec: RandomErasing, draws: Draws, sides: Sides) -> Decisions:
    """Returns the start (top, left) and the size (height, width) of the rectangle, [N, 2] float32 each.

    The size is 0 if nothing is filled. In mode rand, there is also the colour, [N, 3] float32. In mode pixel,
    there are also the start of the noise in `noise_bank` and the sides of the image, [N, 2] int32 each.
    """
    area = uniform_between((spec.sl, spec.sh), draws[:, 1]).astype(np.float64) * sides.prod(axis=1)
    limits = (area / sides[:, 1] ** 2, sides[:, 0] ** 2 / np.maximum(area, 1))
    lowest, highest = np.clip(limits, spec.r1, 1 / spec.r1)
    if spec.use_log_aspect:
        aspect = lowest * (highest / lowest) ** draws[:, 2]
    else:
        aspect = lowest + (highest - lowest) * draws[:, 2]
    size = np.rint(np.sqrt(np.stack([area * aspect, area / aspect], axis=1)))
    size = np.where(bernoulli(spec.EPSILON, draws[:, 0])[:, None], np.clip(size, 1, sides), 0)
    start = np.floor((sides - size + 1) * draws[:, 3:5])
    rectangle = start.astype(np.float32), size.astype(np.float32)
    if spec.mode == "rand":
        return *rectangle, np.ascontiguousarray(normals(draws[:, 5:9])[:, :3])
    if spec.mode == "pixel":
        return *rectangle, (draws[:, 5:7] * _BANK_SIDE).astype(np.int32), sides.astype(np.int32, order="C")
    return rectangle


class Cutout(Transform):
    """Fills square holes at random positions, clipped at the edges of the image (DeVries & Taylor 2017)."""

    n_holes: Count = 1
    """Number of holes per image."""
    length: Count = 112
    """Side of a hole in pixels; odd values are reduced by one."""
    fill_value: Annotated[Fill | None, _NONE] = (0.0,)
    """Pixel value of the holes: one number for all channels, or one per channel; null: a random colour per
    image."""

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers: two for the centre of each hole, and three for a random colour."""
        return 2 * self.n_holes + 3 * (self.fill_value is None)

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        if self.fill_value is None:
            need_rgb(state)
        else:
            need_pixels(state)
            check_fill("fill_value", self.fill_value, state)
        return state


@decide.register
def decide_holes(spec: Cutout, draws: Draws, sides: Sides) -> Decisions:
    """Returns starts (top, left, …) and sizes (height, width, …) of holes, [N, 2 * n_holes] float32 each.

    If the colour is random, there is also the colour, [N, 3] float32.
    """
    within = np.tile(sides, spec.n_holes)
    centre = np.floor(draws[:, : 2 * spec.n_holes].astype(np.float64) * within)
    half = spec.length // 2
    start = np.clip(centre - half, 0, within)
    end = np.clip(centre + half, 0, within)
    colour = (np.floor(draws[:, -3:] * np.float32(256)),) if spec.fill_value is None else ()
    return start.astype(np.float32), (end - start).astype(np.float32), *colour


class GridMask(Transform):
    """Erases the bars of a grid, or the squares between the bars (Chen et al. 2020).

    The grid has a random period of d pixels, a random position and a random angle. The bars have a width of
    round(d * ``ratio``). ``prob`` is the same in all epochs; the paper increases it during training.
    """

    draws: ClassVar[int] = 5

    d1: Count = 96
    """Minimum period d of the grid in pixels."""
    d2: Count = 224
    """Upper limit of the period d in pixels, exclusive."""
    rotate: NonNegative = 1
    """Upper limit of the angle in degrees, exclusive."""
    ratio: Fraction = 0.5
    """Width of the bars as a share of d."""
    mode: Literal[0, 1] = 0
    """0: erase the bars; 1: erase the squares between the bars."""
    prob: Fraction = 1.0
    """Share of the images that are masked."""

    @model_validator(mode="after")
    def _check_range(self) -> GridMask:
        if self.d1 >= self.d2:
            raise ValueError(f"expected d1 < d2, got {self.d1} and {self.d2}")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_pixels(state)
        if state.dtype not in ("uint8", "float32"):
            raise ValueError(f"expected an 8-bit or float32 image, got {state.dtype}")
        if state.channels > 3:  # on a GPU, DALI's operator returns wrong pixels for more channels
            raise ValueError(f"expected an image with 1 to 3 channels, got {state.channels}")
        return state


@decide.register
def decide_grid(spec: GridMask, draws: Draws, sides: Sides) -> Decisions:
    """Returns the period, the side of the squares, the rotation, and the shifts in x and y, [N] each.

    The period is int32 and in pixels. The other arrays are float32. The side of the squares is a share of the
    period. The rotation is in radians, and the shifts are in pixels.
    """
    coin, tile, angle, left, top = draws.astype(np.float64).T
    tile = spec.d1 + np.floor((spec.d2 - spec.d1) * tile)
    share = 1 - np.floor(tile * spec.ratio + 0.5) / tile
    # If an image is not masked, the squares cover all of it in mode 0, and nothing in mode 1.
    share = np.where(bernoulli(spec.prob, coin), share, 0 if spec.mode else _WHOLE_TILE)
    radians = np.deg2rad(np.floor(angle * spec.rotate))
    # Shifts by half a pixel, so that no pixel centre is on the edge of a square.
    shifts = (np.floor(left * tile) - 0.5, np.floor(top * tile) - 0.5)
    return tile.astype(np.int32), *(values.astype(np.float32) for values in (share, radians, *shifts))


class HideAndSeek(Transform):
    """Divides an image into square patches, and fills random patches with zeros (Singh & Lee 2017).

    After NormalizeImage, zero is the mean colour, as in the paper. The side of the patches is drawn for each
    image.
    """

    draws: ClassVar[int] = 3

    hide_prob: Fraction = 0.5
    """Share of the patches that are hidden."""
    grid_sizes: tuple[Index, ...] = Field((0, 16, 32, 44, 56), min_length=1)
    """Possible sides of the patches in pixels; one is drawn per image; 0 hides nothing."""

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_pixels(state)
        if state.size is None:
            raise ValueError(
                "expected images of a fixed size; put this transform after the one that sets the size"
            )
        if (most := self.max_per_row(max(state.size))) > _MAX_PATCHES:
            raise ValueError(
                f"expected at most {_MAX_PATCHES} patches per row, got {most}; increase the smallest of "
                "grid_sizes"
            )
        return state

    def max_per_row(self, side: int) -> int:
        """Returns the maximum number of patches per row in an image with this side in pixels."""
        return -(-side // min((size for size in self.grid_sizes if size), default=side))


@decide.register
def decide_patches(spec: HideAndSeek, draws: Draws, sides: Sides) -> Decisions:
    """Returns starts (top, left, …) and sizes (height, width, …) of patches, [N, 2 * patches] float32 each.

    The size of a patch that is not hidden is 0.
    """
    grids = np.array(spec.grid_sizes)
    side = grids[np.floor(draws[:, 0].astype(np.float64) * len(grids)).astype(int)]
    most = spec.max_per_row(int(sides.max()))
    rows, columns = np.divmod(np.arange(most**2), most)
    begin = np.floor(draws[:, 1:] * _BANK_SIDE).astype(int)
    coins = coin_bank()[(begin[:, :1] + rows) % _BANK_SIDE, (begin[:, 1:] + columns) % _BANK_SIDE]
    corner = np.stack([rows, columns], axis=-1) * side[:, None, None]
    start, end = (np.minimum(edge, sides[:, None]) for edge in (corner, corner + side[:, None, None]))
    size = np.where(bernoulli(spec.hide_prob, coins)[..., None], end - start, 0)
    starts, sizes = (values.reshape(len(draws), -1).astype(np.float32) for values in (start, size))
    return starts, sizes

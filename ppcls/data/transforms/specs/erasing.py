"""Parts of an image taken away: rectangles, holes, a grid, patches.

They may stand before or after NormalizeImage, and after ToCHWImage too, which `plan_chain` puts last.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ppcls.config.base.fields import Count, Fraction, Index, NonNegative, Positive
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs.basic import need_pixels
from ppcls.data.transforms.specs.decisions import Decided, Draws, Sides, decide
from ppcls.data.transforms.specs.fields import Fill, check_fill, chosen, spread
from ppcls.data.transforms.specs.rng import normals, uniforms

OUTSIDE_ANY_TILE = 2.0  # a share of a tile's side that all of it is below
_BANK_SIDE = 512
_BANK_EPOCH = 2**32  # far from any that a run has
_MOST_PATCHES = 40  # in a row: DALI's operator on a GPU has room for 1706 in all


def _bank(depth: int) -> NDArray[np.float32]:
    """Returns uniform numbers that are the same in all runs, [512, 512 depth]."""
    return uniforms(0, _BANK_EPOCH, np.arange(_BANK_SIDE), depth * _BANK_SIDE)


@cache
def noise_bank() -> NDArray[np.float32]:
    """Returns the standard normal numbers from which `RandomErasing` cuts its noise, [512, 512, 3]."""
    return np.ascontiguousarray(normals(_bank(4)).reshape(_BANK_SIDE, _BANK_SIDE, 4)[:, :, :3])


@cache
def coin_bank() -> NDArray[np.float32]:
    """Returns the uniform numbers from which `HideAndSeek` cuts its patches' coins, [512, 512]."""
    return _bank(1)


class RandomErasing(Transform):
    """Fills a random rectangle of some of the images (Zhong et al. 2017).

    Its share of the area is uniform in ``sl`` to ``sh``, its height / width uniform among what is between
    ``r1`` and 1 / ``r1`` and fits in the image, its place uniform. So none has to be drawn again.
    """

    EPSILON: Fraction = Field(0.5, description="share of the images that lose a rectangle")
    sl: Fraction = Field(0.02, description="its smallest share of the area")
    sh: Fraction = Field(0.4, description="its largest share of the area")
    r1: Positive = Field(0.3, description="its smallest height / width, at most 1")
    mean: Fill = Field((0.0,), description="fill of a const rectangle: a number, or one a channel")
    attempt: Count = Field(100, description="accepted for PaddleClas's sake: the first rectangle fits")
    use_log_aspect: bool = Field(False, description="draw the logarithm of height / width uniformly")
    mode: Literal["const", "rand", "pixel"] = Field(
        "const", description="fill with mean, with one normal random colour, or with normal noise"
    )

    @property
    def draws(self) -> int:  # type: ignore[override]
        """A coin, area, aspect, top, left; four for a colour, two for where noise comes from."""
        return 5 + {"const": 0, "rand": 4, "pixel": 2}[self.mode]

    @model_validator(mode="after")
    def _check_ranges(self) -> RandomErasing:
        if self.sl > self.sh:
            raise ValueError(f"expected sl <= sh, got {self.sl} and {self.sh}")
        if self.r1 > 1:
            raise ValueError(f"expected r1 <= 1, got {self.r1}")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_pixels(state)
        if self.mode == "const":
            check_fill("mean", self.mean, state)
        elif not state.normalized:
            raise ValueError(f"mode {self.mode} is in normalized units; put it after NormalizeImage")
        elif state.channels != 3:
            raise ValueError(f"mode {self.mode} needs 3 channels, and the image has {state.channels}")
        return state


@decide.register
def _(spec: RandomErasing, draws: Draws, sides: Sides) -> Decided:
    """Start (top, left) and size (height, width), empty where there is none, [N, 2] float32 each.

    In mode rand also the colour, [N, 3] float32; in mode pixel where the noise begins in `noise_bank` and the
    image's sides, [N, 2] int32 each.
    """
    coin, *_ = draws.T
    area = spread((spec.sl, spec.sh), draws[:, 1]).astype(np.float64) * sides.prod(axis=1)
    limits = (area / sides[:, 1] ** 2, sides[:, 0] ** 2 / np.maximum(area, 1))
    lowest, highest = np.clip(limits, spec.r1, 1 / spec.r1)
    if spec.use_log_aspect:
        aspect = lowest * (highest / lowest) ** draws[:, 2]
    else:
        aspect = lowest + (highest - lowest) * draws[:, 2]
    size = np.rint(np.sqrt(np.stack([area * aspect, area / aspect], axis=1)))
    size = np.where(chosen(spec.EPSILON, coin)[:, None], np.clip(size, 1, sides), 0)
    start = np.floor((sides - size + 1) * draws[:, 3:5])
    rectangle = start.astype(np.float32), size.astype(np.float32)
    if spec.mode == "rand":
        return *rectangle, np.ascontiguousarray(normals(draws[:, 5:9])[:, :3])
    if spec.mode == "pixel":
        return *rectangle, (draws[:, 5:7] * _BANK_SIDE).astype(np.int32), sides.astype(np.int32, order="C")
    return rectangle


class Cutout(Transform):
    """Fills square holes at random places, cut off at the image's edge (DeVries & Taylor 2017)."""

    n_holes: Count = 1
    length: Count = Field(112, description="side of a hole in pixels; an odd one is one less")
    fill_value: Fill = Field((0.0,), description="a number, or one a channel")

    @property
    def draws(self) -> int:  # type: ignore[override]
        """The centre of each hole."""
        return 2 * self.n_holes

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_pixels(state)
        check_fill("fill_value", self.fill_value, state)
        return state


@decide.register
def _(spec: Cutout, draws: Draws, sides: Sides) -> Decided:
    """Starts (top, left, top, left …) and sizes (height, width …) of the holes, [N, 2 n_holes] float32."""
    within = np.tile(sides, spec.n_holes)
    centre, half = np.floor(draws.astype(np.float64) * within), spec.length // 2
    start, end = np.clip(centre - half, 0, within), np.clip(centre + half, 0, within)
    return start.astype(np.float32), (end - start).astype(np.float32)


class GridMask(Transform):
    """Takes away a grid, or all but its squares (Chen et al. 2020).

    The squares repeat every d pixels in both directions and have a side of d - round(d ``ratio``). The grid
    lies at a random place and turned by a random angle. ``prob`` holds from the first epoch on.
    """

    draws: ClassVar[int] = 5

    d1: Count = Field(96, description="smallest d")
    d2: Count = Field(224, description="largest d is one less")
    rotate: NonNegative = Field(1, description="degrees; angles are whole and below it")
    ratio: Fraction = Field(0.5, description="width of the grid's bars as a share of d")
    mode: Literal[0, 1] = Field(0, description="0 keeps the squares only, 1 takes them away")
    prob: Fraction = Field(1.0, description="share of the images that are masked")

    @model_validator(mode="after")
    def _check_range(self) -> GridMask:
        if self.d1 >= self.d2:
            raise ValueError(f"expected d1 < d2, got {self.d1} and {self.d2}")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_pixels(state)
        if state.dtype not in ("uint8", "float32"):
            raise ValueError(f"works on 8-bit and float32 images, and these are {state.dtype}")
        if state.channels > 3:  # DALI's operator garbles more on a GPU
            raise ValueError(f"works on 1 to 3 channels, and these images have {state.channels}")
        return state


@decide.register
def _(spec: GridMask, draws: Draws, sides: Sides) -> Decided:
    """The grid's period d, [N] int32; side of its squares / d, radians, shift in x and in y, [N] float32."""
    coin, tile, angle, left, top = draws.astype(np.float64).T
    tile = spec.d1 + np.floor((spec.d2 - spec.d1) * tile)
    share = 1 - np.floor(tile * spec.ratio + 0.5) / tile
    # An image that is not masked keeps everything: squares are all of it in mode 0, nothing in mode 1.
    share = np.where(chosen(spec.prob, coin), share, 0 if spec.mode else OUTSIDE_ANY_TILE)
    turned = np.deg2rad(np.floor(angle * spec.rotate))
    # Half a pixel off, so that no pixel is on a square's edge.
    shifts = (np.floor(left * tile) - 0.5, np.floor(top * tile) - 0.5)
    return tile.astype(np.int32), *(each.astype(np.float32) for each in (share, turned, *shifts))


class HideAndSeek(Transform):
    """Hides some of the patches of an image by zeros (Singh & Lee 2017).

    After NormalizeImage that is the mean colour, as in the paper. A patch's side is drawn for each image.
    """

    draws: ClassVar[int] = 3

    hide_prob: Fraction = Field(0.5, description="share of the patches that are hidden")
    grid_sizes: tuple[Index, ...] = Field(
        (0, 16, 32, 44, 56),
        min_length=1,
        description="sides of a patch in pixels, of which each image draws one; 0 hides nothing",
    )

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_pixels(state)
        if state.size is None:
            raise ValueError("works on images of one size; put it after what crops them")
        if (most := self.in_a_row(max(state.size))) > _MOST_PATCHES:
            raise ValueError(f"expected at most {_MOST_PATCHES} patches side by side, got {most}")
        return state

    def in_a_row(self, side: int) -> int:
        """Returns how many patches an image of this side has at most in a row."""
        return -(-side // min((size for size in self.grid_sizes if size), default=side))


@decide.register
def _(spec: HideAndSeek, draws: Draws, sides: Sides) -> Decided:
    """Starts (top, left, top, left …) and sizes (height, width …) of all patches, [N, 2 patches] float32.

    Those that stay have no size.
    """
    grids = np.array(spec.grid_sizes)
    side = grids[np.floor(draws[:, 0].astype(np.float64) * len(grids)).astype(int)]
    most = spec.in_a_row(int(sides.max()))
    rows, columns = np.divmod(np.arange(most**2), most)
    begin = np.floor(draws[:, 1:] * _BANK_SIDE).astype(int)
    coins = coin_bank()[(begin[:, :1] + rows) % _BANK_SIDE, (begin[:, 1:] + columns) % _BANK_SIDE]
    place = np.stack([rows, columns], axis=-1) * side[:, None, None]
    start, end = (np.minimum(each, sides[:, None]) for each in (place, place + side[:, None, None]))
    size = np.where(chosen(spec.hide_prob, coins)[..., None], end - start, 0)
    starts, sizes = (each.reshape(len(draws), -1).astype(np.float32) for each in (start, size))
    return starts, sizes

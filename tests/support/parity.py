"""Compares DALI's pixels with those of numpy_ops for chains of transforms, on real photographs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared_pipeline import Images, SharedPipeline, chain_branch, expected

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.dali_ops import Device, LoweringContext
from ppcls.data.transforms.specs import (
    DecodeImage,
    NormalizeImage,
    Op,
    ToCHWImage,
    count_draws,
)
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.data.transforms.specs.rng import uniforms

DECODE, NORMALIZE, TO_CHW = DecodeImage(), NormalizeImage(), ToCHWImage()


@dataclass(frozen=True)
class Case:
    """A chain, and the allowed difference between backends.

    Attributes:
        chain: The transforms.
        how: ``"exact"``; ``"half"``: one unit in the last place of float16; ``"bilinear"``: rounding of one
            grey level; ``"antialias"``: besides, Pillow normalizes its filter at the image's edge where DALI
            repeats the edge's pixels; ``"overshoot"``: besides, Pillow clips to 0..255 between its two
            passes; ``"nearest"``: a source position exactly between two pixels may round either way;
            ``"turned"``: before version 5 OpenCV interpolates at 32nds of a pixel; ``"blurred"``: OpenCV
            rounds the kernel's weights to 256ths; ``"augmented"``: several operations multiply differences,
            as equalize does; ``"edges"``: a turned square's edge may pass on either side of a pixel's centre.
        gain: How much larger the chain may make a difference between decoders.
    """

    chain: tuple[Transform, ...]
    how: str
    gain: float = 1.0


def decoded(*chain: Transform, how: str = "exact", gain: float = 1.0) -> Case:
    return Case((DECODE, *chain), how, gain)


def normalized(*chain: Transform, how: str = "exact") -> Case:
    return Case((DECODE, NORMALIZE, *chain), how)


def plan(chain: tuple[Transform, ...]) -> tuple[Op, ...]:
    """Assigns slots as plan_chain does, without changing the chain."""
    slots = np.cumsum([0, *(spec.draws for spec in chain)])
    return tuple(Op(spec, int(slot)) for spec, slot in zip(chain, slots, strict=False))


def grey_levels(image: NDArray[Any], chain: tuple[Transform, ...]) -> NDArray[np.float64]:
    """Returns [H, W, C] in grey levels, with the normalization undone."""
    pixels = image.astype(np.float64)
    if TO_CHW in chain:
        pixels = pixels.transpose(1, 2, 0)
    for spec in chain:
        if isinstance(spec, NormalizeImage):
            assert image.dtype == (np.float16 if spec.output_fp16 else np.float32)
            assert not pixels[..., len(spec.mean) :].any() or len(spec.mean) == 1, "channels filled by zeros"
            pixels = pixels[..., : len(spec.mean)] if len(spec.mean) > 1 else pixels
            pixels = (pixels * np.array(spec.std) + np.array(spec.mean)) / spec.scale
    return pixels


def check(difference: NDArray[np.float64], how: str, slack: float) -> None:
    """Compares differences [H, W, C] in grey levels with what ``how`` allows.

    ``slack`` is the difference between the decoders.
    """
    if how == "exact":
        assert difference.max() <= 0.01 + slack
    elif how == "half":
        assert difference.max() <= 255 * 0.23 * 2**-9 + slack
    elif how == "bilinear":
        assert difference.max() <= 1.01 + slack
    elif how == "edges":
        assert (difference > 0.01 + slack).mean() < 1e-3
    elif how == "blurred":
        assert difference.max() <= 2.01 + slack
    elif how == "antialias":
        inside = difference[4:-4, 4:-4]
        assert inside.max() <= 1.01 + slack
        assert difference.max() <= 25
        assert difference.mean() < 0.25 + slack
    elif how == "overshoot":
        assert difference.max() <= 25
        assert (difference > 1.01 + slack).mean() < 0.04
        assert difference.mean() < 0.25 + slack
    elif how == "turned":
        assert difference.max() <= 5 + slack
        assert (difference > 1.01 + slack).mean() < 0.03
        assert difference.mean() < 0.2 + slack
    elif how == "augmented":
        assert difference.mean() < 1 + 3 * slack
    else:
        assert how == "nearest"
        assert (difference > slack).mean() < 0.03


def encode(photos: dict[str, Path]) -> list[bytes]:
    return [path.read_bytes() for path in photos.values()]


def draws_for(ops: tuple[Op, ...], files: list[bytes]) -> NDArray[np.float32]:
    return uniforms(5, 0, np.arange(len(files)), count_draws(ops))


def run_chains(
    chains: Iterable[tuple[Op, ...]], photos: dict[str, Path], device: Device, callbacks: bool = True
) -> SharedPipeline:
    """Runs the photographs through many chains in one pipeline."""
    files, place = encode(photos), LoweringContext(device, 2, callbacks=callbacks)
    return SharedPipeline(
        {ops: chain_branch(ops, files, draws_for(ops, files), place) for ops in chains}, device
    )


def alone_and_fused(chains: Iterable[tuple[Transform, ...]]) -> Iterator[tuple[Op, ...]]:
    for each in map(plan, chains):
        yield each
        yield fuse(each)


def by_opencv(chain: tuple[Transform, ...]) -> tuple[Op, ...]:
    """Returns the chain as it is fused for a CPU."""
    return fuse(plan(chain), by_opencv=True)


def differences(
    case: Case, images: Images, photos: dict[str, Path]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yields each photograph's name and the differences between DALI's and numpy_ops's pixels, [H, W, C]."""
    ops, files = plan(case.chain), encode(photos)
    for name, file, numbers, got in zip(photos, files, draws_for(ops, files), images, strict=True):
        wanted = expected(ops, file, numbers)
        assert got.shape == wanted.shape, name
        assert got.dtype == wanted.dtype, name
        yield name, np.abs(grey_levels(got, case.chain) - grey_levels(wanted, case.chain))


def compare(case: Case, images: Images, photos: dict[str, Path]) -> None:
    for name, difference in differences(case, images, photos):
        # OpenCV and DALI round the product of ink and black differently
        check(difference, case.how, case.gain if name.startswith("cmyk") else 0.0)


def compare_as_wholes(case: Case, images: Images, photos: dict[str, Path]) -> None:
    """Compares means, for a GPU, whose JPEG decoder uses other arithmetic."""
    for name, difference in differences(case, images, photos):
        # the largest was 2.03, for the upscaled chroma of a progressive JPEG
        assert difference.mean() < (12 if case.how == "augmented" else 2.5), name

"""Images with other channels and depths than 8-bit RGB: DALI, fused and not, against numpy_ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from parity import alone_and_fused, plan
from shared_pipeline import SharedPipeline, chain_branch, expected
from zoo import tiff

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.dali_ops import Device, LoweringContext
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
    count_draws,
)
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.data.transforms.specs.rng import uniforms

SIDES = ((50, 50), (61, 47), (90, 120))


def photographs(channels: int, dtype: str) -> list[bytes]:
    """Returns images of smoothed noise, so that neighbouring pixels differ little when resampled."""
    rng, made = np.random.default_rng(channels), []
    for height, width in SIDES:
        coarse = rng.integers(0, np.iinfo(dtype).max, (height // 5 + 1, width // 5 + 1, channels), dtype)
        made.append(tiff(np.kron(coarse, np.ones((5, 5, 1), dtype))[:height, :width]))
    return made


def chains(channels: int, dtype: str) -> list[tuple[Transform, ...]]:
    decode = DecodeImage(channels=channels, dtype=dtype)
    scale = 1 / np.iinfo(dtype).max
    normalize = NormalizeImage(
        scale=scale, mean=tuple(np.linspace(0.1, 0.5, channels)), std=tuple(np.linspace(0.2, 0.3, channels))
    )
    pil = {"backend": "pil"}
    chosen: list[tuple[Transform, ...]] = [
        (),
        *((RandFlipImage(flip_code=code),) for code in (1, 0, -1)),
        (CropImage(size=(31, 30)),),
        (ToCHWImage(),),
        (normalize,),
        (NormalizeImage(scale=scale, mean=(0.5,), std=(0.25,)), ToCHWImage()),
        (ResizeImage(size=(33, 40)),),
        (ResizeImage(resize_short=64), CropImage(size=(60, 60)), normalize, ToCHWImage()),
        (RandCropImage(size=(24, 20)), RandFlipImage(), normalize, ToCHWImage()),
        (RandFlipImage(), RandCropImage(size=(24, 20)), normalize),
    ]
    if dtype == "uint8":
        chosen += [(ResizeImage(size=(33, 40), **pil),), (RandCropImage(size=(24, 20), **pil), normalize)]
    return [(decode, *chain) for chain in chosen]


Kind = tuple[int, str]
Make = Callable[[Kind, Device], SharedPipeline]
KINDS: list[Kind] = [
    *((1, "uint8"), (1, "uint16"), (2, "uint8"), (3, "uint16"), (4, "uint8"), (5, "uint16"), (17, "uint8"))
]


def every_graph() -> Iterator[Any]:
    """Yields each chain unfused and, if it can be fused, fused."""
    for kind in KINDS:
        for chain in chains(*kind):
            name = f"{kind[0]}-{kind[1]}-{'+'.join(spec.kind for spec in chain[1:])}"
            alone = plan(chain)
            yield pytest.param(kind, chain, alone, id=f"{name}-alone")
            if fuse(alone) != alone:
                yield pytest.param(kind, chain, fuse(alone), id=f"{name}-fused")


CASES = list(every_graph())


def draws_for(ops: tuple[Op, ...]) -> NDArray[np.float32]:
    return uniforms(7, 0, np.arange(len(SIDES)), count_draws(ops))


@pytest.fixture(scope="module")
def pipelines() -> Make:
    """Runs all chains over the images of one kind, on a CPU or a GPU."""

    @cache
    def make(kind: Kind, device: Device) -> SharedPipeline:
        files, place = photographs(*kind), LoweringContext(device, 2)
        graphs = alone_and_fused(chains(*kind))
        return SharedPipeline(
            {ops: chain_branch(ops, files, draws_for(ops), place) for ops in graphs}, device
        )

    return make


def compare(kind: Kind, chain: tuple[Transform, ...], ops: tuple[Op, ...], pipeline: SharedPipeline) -> None:
    """Compares in shares of the full range; without the edges for Pillow's filter."""
    full = float(np.iinfo(kind[1]).max)
    resampled = any(isinstance(spec, (ResizeImage, RandCropImage)) for spec in chain)
    for file, numbers, found in zip(photographs(*kind), draws_for(ops), pipeline.images(ops), strict=True):
        wanted = expected(plan(chain), file, numbers)
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        difference = np.abs(found.astype(np.float64) - wanted)
        if isinstance(chain[-1], ToCHWImage):
            difference = difference.transpose(1, 2, 0)
        normalize = next((spec for spec in chain if isinstance(spec, NormalizeImage)), None)
        difference *= 1 / full if normalize is None else np.array(normalize.std)
        if any(getattr(spec, "backend", "") == "pil" for spec in chain):
            difference = difference[4:-4, 4:-4]
        assert difference.max() <= (1.01 / 255 if resampled else 1e-6)


@pytest.mark.parametrize(("kind", "chain", "ops"), CASES)
def test_dali_on_cpu_matches_numpy(
    kind: Kind, chain: tuple[Transform, ...], ops: tuple[Op, ...], pipelines: Make
) -> None:
    compare(kind, chain, ops, pipelines(kind, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "chain", "ops"), CASES)
def test_dali_on_gpu_matches_numpy(
    kind: Kind, chain: tuple[Transform, ...], ops: tuple[Op, ...], pipelines: Make
) -> None:
    compare(kind, chain, ops, pipelines(kind, "gpu"))

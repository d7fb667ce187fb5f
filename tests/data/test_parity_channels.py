"""Images of other channels and depths than 8-bit RGB: DALI, fused and not, against numpy_ops."""

from __future__ import annotations

import numpy as np
import pytest
from test_parity import plan, run_dali
from zoo import tiff

from ppcls.config.transform import Transform
from ppcls.data.dali_ops import Device
from ppcls.data.draws import uniforms
from ppcls.data.fuse import fuse
from ppcls.data.numpy_ops import run
from ppcls.data.transforms import (
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

SIDES = ((50, 50), (61, 47), (90, 120))


def photographs(channels: int, dtype: str) -> list[bytes]:
    """Returns smooth images of noise, so that resampling has neighbours to choose between."""
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


KINDS = [(1, "uint8"), (1, "uint16"), (2, "uint8"), (3, "uint16"), (4, "uint8"), (5, "uint16"), (17, "uint8")]
CASES = [(kind, chain) for kind in KINDS for chain in chains(*kind)]
NAMES = [f"{kind[0]}-{kind[1]}-{'+'.join(spec.kind for spec in chain[1:])}" for kind, chain in CASES]


def compare(
    chain: tuple[Transform, ...], ops: tuple[Op, ...], kind: tuple[int, str], device: Device
) -> float:
    """Returns the largest difference in shares of the full range, inside the edges for Pillow's filter."""
    encoded = photographs(*kind)
    draws = uniforms(7, 0, np.arange(len(encoded)), count_draws(ops))
    full = float(np.iinfo(kind[1]).max)
    largest = 0.0
    images = run_dali(ops, encoded, draws, device, callbacks=True, decoder=chain[0])
    for file, numbers, found in zip(encoded, draws, images, strict=True):
        expected = run(plan(chain), file, numbers)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        difference = np.abs(found.astype(np.float64) - expected)
        if isinstance(chain[-1], ToCHWImage):
            difference = difference.transpose(1, 2, 0)
        normalize = next((spec for spec in chain if isinstance(spec, NormalizeImage)), None)
        difference *= 1 / full if normalize is None else np.array(normalize.std)
        if any(getattr(spec, "backend", "") == "pil" for spec in chain):
            difference = difference[4:-4, 4:-4]
        largest = max(largest, difference.max())
    return largest


@pytest.mark.parametrize("fused", [False, True], ids=["alone", "fused"])
@pytest.mark.parametrize(("kind", "chain"), CASES, ids=NAMES)
def test_dali_on_the_cpu(kind: tuple[int, str], chain: tuple[Transform, ...], fused: bool) -> None:
    ops = fuse(plan(chain)) if fused else plan(chain)
    resampled = any(isinstance(spec, (ResizeImage, RandCropImage)) for spec in chain)
    assert compare(chain, ops, kind, "cpu") <= (1.01 / 255 if resampled else 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True], ids=["alone", "fused"])
@pytest.mark.parametrize(("kind", "chain"), CASES, ids=NAMES)
def test_dali_on_a_gpu(kind: tuple[int, str], chain: tuple[Transform, ...], fused: bool) -> None:
    ops = fuse(plan(chain)) if fused else plan(chain)
    resampled = any(isinstance(spec, (ResizeImage, RandCropImage)) for spec in chain)
    assert compare(chain, ops, kind, "gpu") <= (1.01 / 255 if resampled else 1e-6)

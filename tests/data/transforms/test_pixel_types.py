"""All pixel types and numbers of channels that a transform accepts: DALI against numpy_ops."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvidia.dali import fn
from shared_pipeline import GraphBranch, Images, SharedPipeline

from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.dali_ops import Device, LoweringContext, Node, lower
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs.blur import BlurImage
from ppcls.data.transforms.specs.decisions import decide
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, HideAndSeek, RandomErasing
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRot90, RandomRotation
from ppcls.data.transforms.specs.photometric import ColorJitter, GaussianBlur, PCALighting, RandomGrayscale
from ppcls.data.transforms.specs.rng import uniforms

SPECS: list[Transform] = [
    Pad(padding=[3, 50], fill=7),
    Pad(padding=5, padding_mode="edge"),
    Pad(padding=90, padding_mode="reflect"),
    RandomCropImage(size=(20, 30)),
    RandomRotation(prob=1, degrees=40, fill=3),
    RandomRotation(degrees=40, interpolation="bilinear", fill=3),
    RandomRot90(),
    ColorJitter(brightness=0.4, hue=0.1),
    RandomGrayscale(prob=0.5),
    PCALighting(),
    GaussianBlur(kernel_size=9),
    BlurImage(),
    RandomErasing(mean=(9,)),
    RandomErasing(mode="rand"),
    RandomErasing(mode="pixel"),
    Cutout(length=30, n_holes=2, fill_value=5),
    GridMask(d1=10, d2=20),
    HideAndSeek(grid_sizes=(0, 7, 20)),
]
LARGEST = {"uint8": 255, "uint16": 65535}
COUNT = 6


def pictures(dtype: str, channels: int) -> list[NDArray[Any]]:
    """Returns smooth, colourful images [41, 41, channels]."""
    y, x = np.mgrid[:41, :41][..., None] / 41
    waves = (np.sin(5 * x + k + np.arange(channels)) * np.cos(4 * y) for k in range(COUNT))
    if dtype in LARGEST:
        return [((0.5 + 0.49 * each) * LARGEST[dtype]).astype(dtype) for each in waves]
    return [each.astype(dtype) for each in waves]


def accepts(spec: Transform, dtype: Any, channels: int) -> bool:
    floats = dtype.startswith("float")
    state = ImageState(encoded=False, dtype=dtype, normalized=floats, channels=channels, size=(41, 41))
    try:
        spec.after(state)
    except ValueError:
        return False
    return True


DTYPES = ("uint8", "uint16", "float32", "float16")
CASES = [case for case in product(SPECS, DTYPES, (1, 3, 6)) if accepts(*case)]


Case = tuple[Transform, str, int]


def decisions(spec: Transform) -> tuple[NDArray[Any], ...]:
    return decide(spec, uniforms(8, 0, np.arange(COUNT), spec.draws), np.full([COUNT, 2], 41))


def branch(case: Case, device: Device) -> GraphBranch:
    spec, dtype, channels = case

    def lowered(node: Node, *decided: Node) -> Node:
        node = fn.reshape(node, layout="HWC")
        context = LoweringContext(device, callbacks=False, decisions=decided)
        return lower(spec, node.gpu() if device == "gpu" else node, context)

    return GraphBranch([pictures(dtype, channels), *decisions(spec)], lowered)


@pytest.fixture(scope="module")
def on_cpu() -> SharedPipeline:
    return SharedPipeline({case: branch(case, "cpu") for case in CASES}, "cpu", exec_dynamic=False)


@pytest.fixture(scope="module")
def on_gpu() -> SharedPipeline:
    return SharedPipeline({case: branch(case, "gpu") for case in CASES}, "gpu", exec_dynamic=False)


def compare(case: Case, found: Images) -> None:
    spec, dtype, channels = case
    images, decided = pictures(dtype, channels), decisions(spec)
    for row, got in enumerate(found):
        expected = apply(spec, images[row], tuple(each[row] for each in decided))
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype == dtype
        difference = np.abs(got.astype(float) - expected.astype(float)) / LARGEST.get(dtype, 1)
        if getattr(spec, "interpolation", "") == "nearest":
            assert (difference > 0).mean() < 0.01
        else:  # OpenCV before version 5 interpolates at 32nds of a pixel: between -1 and a fill of 3
            assert difference.max() <= (0.13 if isinstance(spec, RandomRotation) else 2.01 / 255)


def name_of(case: Case) -> str:
    spec, dtype, channels = case
    options = spec.model_dump(exclude_defaults=True)
    return "-".join([spec.kind, *map(str, options.values()), dtype, str(channels)]).replace(" ", "")


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_dali_on_cpu_matches_numpy(case: Case, on_cpu: SharedPipeline) -> None:
    compare(case, on_cpu.images(case))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_dali_on_gpu_matches_numpy(case: Case, on_gpu: SharedPipeline) -> None:
    compare(case, on_gpu.images(case))

"""DALI's loader receives the pixels of images in memory, which must be those that it would decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_conformance import GREY_LEVELS, MAKERS, MAX_DIFFERENCE, take

from ppcls.data.index.pixels import PixelIndex
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.reader import count_channels_in_memory
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import (
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
    plan_chain,
)
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage
from ppcls.data.transforms.specs.photometric import RandomGrayscale
from ppcls.errors import UserError
from ppcls.explain.description import StageOperator
from ppcls.explain.trace import trace_dali

ORDER = Order(ShuffledSampler(13), batch_size=4, seed=3)
NORMALIZE = NormalizeImage(order="")
CHAINS: dict[str, tuple[list[Transform], str]] = {
    "shifted": ([Pad(padding=2), RandomCropImage(size=(9, 11)), RandFlipImage(), NORMALIZE], "HWC"),
    "window": ([RandCropImage(size=(8, 8)), RandFlipImage(), NORMALIZE, ToCHWImage()], "CHW"),
    "resized": ([ResizeImage(size=(6, 5)), NORMALIZE], "HWC"),
    "plain": ([RandomGrayscale(prob=0.5), NORMALIZE], "CHW"),
}
GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in MAKERS if "gpu" in name]


class Files:
    """The same samples as encoded images, as records of other data sets are."""

    def __init__(self, index: PixelIndex) -> None:
        self._index = index
        self.labels = index.labels
        self.source = index.source

    def __len__(self) -> int:
        return len(self._index)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "read_pixels"):
            raise AttributeError(name)
        return getattr(self._index, name)


def index_of(*channels: int) -> PixelIndex:
    pixels = np.random.default_rng(1).integers(0, 256, (13, 9, 11, *channels), np.uint8)
    return PixelIndex(Path("pixels"), pixels, np.arange(13))


def load(kind: str, index: Any, name: str, **decoder: Any) -> Loader:
    transforms, layout = CHAINS[name]
    return MAKERS[kind](index, ORDER, plan_chain([DecodeImage(**decoder), *transforms], layout))


@pytest.mark.parametrize("channels", [(), (3,)], ids=["grey", "RGB"])
@pytest.mark.parametrize("to_rgb", [True, False], ids=["to RGB", "to BGR"])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("kind", ["dali-cpu", *GPU])
def test_pixels_in_memory_equal_decoded_files(
    kind: str, name: str, to_rgb: bool, channels: tuple[int, ...]
) -> None:
    index = index_of(*channels)
    decoder = DecodeImage(to_rgb=to_rgb)
    assert count_channels_in_memory(index, decoder) == (channels or (1,))[0]
    assert count_channels_in_memory(Files(index), decoder) == 0
    found = take(load(kind, index, name, to_rgb=to_rgb), epochs=2)
    decoded = take(load(kind, Files(index), name, to_rgb=to_rgb), epochs=2)
    by_numpy = take(load("paddle-0", index, name, to_rgb=to_rgb), epochs=2)
    assert len(found) == len(decoded) == len(by_numpy) == 8
    for own, file, numpy in zip(found, decoded, by_numpy, strict=True):
        np.testing.assert_array_equal(own[0], file[0])
        np.testing.assert_array_equal(own[1], file[1])
        assert np.abs(own[0] - numpy[0]).max() * GREY_LEVELS <= MAX_DIFFERENCE[kind]


@pytest.mark.parametrize("kind", ["dali-cpu", *GPU])
def test_loader_of_pixels_continues_at_any_position(kind: str) -> None:
    expected = take(load(kind, index_of(), "shifted"), epochs=2)
    loader = load(kind, index_of(), "shifted")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    take(loader, epochs=1)  # reads ahead, and goes back afterwards
    loader.load_state_dict(state)
    for found, wanted in zip(take(loader, epochs=1), expected[3:4], strict=True):
        np.testing.assert_array_equal(found[0], wanted[0])


def test_description_says_that_no_files_are_read() -> None:
    loader = load("dali-cpu", index_of(), "shifted")
    assert isinstance(loader, DaliLoader)
    read, decode, *_ = trace_dali(loader)
    assert read.operators == (StageOperator("memory", "cpu", "pixels"),)
    assert [each.name for each in decode.operators] == ["color_space_conversion"]


@pytest.mark.parametrize(
    ("decoder", "text"),
    [
        ({"max_pixels": 98}, "11x9 pixels"),
        ({"expected_size": 9}, "expected 9x9 pixels"),
    ],
)
def test_images_in_memory_that_the_decoder_rejects_are_an_error(decoder: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        take(load("dali-cpu", index_of(), "shifted", **decoder), epochs=1)

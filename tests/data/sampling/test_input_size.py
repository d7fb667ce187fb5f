"""Input sizes that change from step to step, equal for all loaders and ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.sampling.sizes import InputSize, MultiScale, Progressive, check_sizes
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    plan_chain,
)
from ppcls.data.transforms.specs.fuse import fuse, resize_chain

CHAINS: list[list[Transform]] = [
    [DecodeImage(), RandCropImage(size=(24, 24)), RandFlipImage(), NormalizeImage()],
    [
        DecodeImage(),
        ResizeImage(resize_short=60),
        RandCropImage(size=(24, 24), backend="pil"),
        NormalizeImage(),
    ],
    [DecodeImage(), RandFlipImage(), ResizeImage(size=(24, 24)), NormalizeImage()],
]
MANY = MultiScale(sizes=(16, 24, 40))
GROWING = Progressive(sizes=(16, 24, 40), epochs=(0, 1, 3))
MAKERS: dict[str, Callable[..., Loader]] = {
    "dali-cpu": partial(DaliLoader, settings=DaliSettings(threads=2)),
    "dali-gpu": partial(DaliLoader, settings=DaliSettings(0, threads=2)),
    "paddle": PaddleLoader,
}


@pytest.fixture(scope="session")
def index(photos: dict[str, Path]) -> FileIndex:
    files = [path for name, path in photos.items() if name.split("-")[0] in ("jpeg444", "png", "grey", "bmp")]
    paths = np.array([path.name.encode() for path in files])
    return FileIndex(root=files[0].parent, paths=paths, labels=np.arange(12), source=files[0].parent)


def order(**options: Any) -> Order:
    return Order(ShuffledSampler(12), **{"batch_size": 4, "seed": 3, **options})


def take(loader: Loader, epochs: int = 1) -> list[np.ndarray]:
    return [np.array(batch.image) for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        *((kind, sizes) for kind in ("dali-cpu", "paddle") for sizes in (MANY, GROWING)),
        pytest.param("dali-gpu", MANY, marks=pytest.mark.gpu),  # one graph for both; it is fed other numbers
    ],
    ids=lambda value: getattr(value, "kind", value),
)
@pytest.mark.parametrize("chain", CHAINS)
def test_loaders_return_batches_of_the_drawn_size(
    kind: str, chain: list[Transform], sizes: InputSize, index: FileIndex
) -> None:
    ops = plan_chain(chain, "CHW")
    batches = take(MAKERS[kind](index, order(), ops, sizes=sizes), epochs=4)
    cursor, seen = Cursor(), set()
    for image in batches:
        side = sizes.size_at(3, cursor)
        assert image.shape == (4, 3, side, side)
        seen.add(side)
        cursor = cursor.next(3)
    assert seen == set(sizes.sizes)


@pytest.mark.parametrize("chain", CHAINS)
def test_loaders_agree_at_variable_sizes(chain: list[Transform], index: FileIndex) -> None:
    ops = plan_chain(chain, "CHW")
    one, two = (take(MAKERS[kind](index, order(), ops, sizes=MANY), 2) for kind in ("dali-cpu", "paddle"))
    for dali, paddle in zip(one, two, strict=True):
        difference = np.abs(dali - paddle) * 255 * 0.225
        assert np.median(difference) <= 0.01
        assert difference.mean() < 0.5


def test_size_is_equal_on_all_ranks_and_after_resuming(index: FileIndex) -> None:
    ops = plan_chain(CHAINS[0], "CHW")
    whole = take(MAKERS["dali-cpu"](index, order(), ops, sizes=MANY))
    ranks = [
        take(MAKERS["dali-cpu"](index, order(batch_size=2, rank=rank, world=2), ops, sizes=MANY))
        for rank in range(2)
    ]
    for step, image in enumerate(whole):
        np.testing.assert_array_equal(image, np.concatenate([rank[step] for rank in ranks]))
    for kind in ("dali-cpu", "paddle"):
        loader = MAKERS[kind](index, order(), ops, sizes=MANY)
        loader.load_state_dict(order().state_dict(Cursor(0, 1)))
        expected = take(MAKERS[kind](index, order(), ops, sizes=MANY))[1:]
        for found, image in zip(take(loader), expected, strict=True):
            np.testing.assert_array_equal(found, image)


def test_resize_chain_at_its_size_changes_nothing(index: FileIndex) -> None:
    for chain in CHAINS:
        ops = plan_chain(chain, "HWC")
        for make in (MAKERS["dali-cpu"], MAKERS["paddle"]):
            fixed, sized = (
                take(make(index, order(), ops, sizes=sizes)) for sizes in (None, MultiScale(sizes=(24,)))
            )
            for one, two in zip(fixed, sized, strict=True):
                np.testing.assert_array_equal(one, two)


def test_multi_scale_sizes_are_uniform_and_last_every_steps() -> None:
    drawn = [MANY.size_at(0, Cursor(epoch, step)) for epoch in range(30) for step in range(100)]
    counts = Counter(drawn)
    assert set(counts) == {16, 24, 40}
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in counts.values())
    stretches = MultiScale(sizes=(16, 24, 40), every=5)
    for first in range(0, 100, 5):
        assert len({stretches.size_at(0, Cursor(2, step)) for step in range(first, first + 5)}) == 1
    assert drawn != [MANY.size_at(1, Cursor(epoch, step)) for epoch in range(30) for step in range(100)]


def test_progressive_size_follows_the_epoch() -> None:
    assert [GROWING.size_at(0, Cursor(epoch, 7)) for epoch in range(5)] == [16, 24, 24, 40, 40]


def test_resize_chain_changes_only_the_resizing_op() -> None:
    for chain in CHAINS:
        ops = fuse(plan_chain(chain, "CHW"))
        changed = [a != b for a, b in zip(ops, resize_chain(ops, 99), strict=True)]
        assert sum(changed) == 1
        assert resize_chain(resize_chain(ops, 50), 99) == resize_chain(ops, 99)


@pytest.mark.parametrize(
    ("chain", "text"),
    [
        (
            [DecodeImage(), ResizeImage(resize_short=60), CropImage(size=(24, 24)), NormalizeImage()],
            "input_size needs RandCropImage or ResizeImage",
        ),
        (
            [DecodeImage(), RandCropImage(size=(60, 60)), CropImage(size=(24, 24)), NormalizeImage()],
            "produce images of 40x40 for input_size 40, got 24x24: a transform after RandCropImage "
            "sets the size",
        ),
        (
            [DecodeImage(), RandCropImage(size=(60, 60)), CropImage(size=(50, 50)), NormalizeImage()],
            "at size 40: a 50x50 crop needs images of at least 50x50 pixels, got 40x40; ",
        ),
    ],
)
def test_input_size_rejects_chain_without_variable_size(chain: list[Transform], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_sizes(chain, (40,))


@pytest.mark.parametrize("epochs", [(0, 1), (1, 2, 3), (0, 2, 2), ()])
def test_progressive_rejects_wrong_epochs(epochs: tuple[int, ...]) -> None:
    with pytest.raises(
        ValidationError, match="expected 3 increasing epochs, one for each size, starting with 0"
    ):
        Progressive(sizes=(1, 2, 3), epochs=epochs)

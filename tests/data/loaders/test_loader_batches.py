"""Conformance of all loaders: the samples, pixels and labels of batches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_conformance import (
    AUGMENT,
    EVAL,
    FAST,
    GREY_LEVELS,
    MAKERS,
    ORDER,
    SOURCES,
    TRAIN,
    cases,
    check_against_reference,
    folder_loader,
    read_list,
    take,
)

from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Loader
from ppcls.data.sampling.epoch_samplers import (
    BalancedClassSampler,
    IdentitySampler,
    RepeatedAugmentationSampler,
    SequentialSampler,
    ShuffledSampler,
    WeightedRandomSampler,
)
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.specs import (
    Op,
)

CHAINS = {"train": (TRAIN, (4, 3, 20, 24)), "eval": (EVAL, (4, 20, 24, 3))}


@cases(
    "index,ops,shape",
    {f"{name}-{source}": (source, *chain) for source in SOURCES for name, chain in CHAINS.items()},
    on_slow=["train-files", "eval-files", "train-tfrecord"],
    indirect=["index"],
)
def test_batches_match_numpy_reference(
    kind: str, make: Callable[..., Loader], index: Index, ops: tuple[Op, ...], shape: tuple[int, ...]
) -> None:
    loader = make(ops=ops)
    assert len(loader) == 6
    for epoch in range(2):
        found = take(loader)
        assert {each[0].shape for each in found} == {shape}
        check_against_reference(kind, found, index, ORDER, ops, epoch)


def test_augmentations_match_numpy_reference(kind: str, make: Callable[..., Loader], index: Index) -> None:
    check_against_reference(kind, take(make(ops=AUGMENT)), index, ORDER, AUGMENT, 0)


ORDERS: dict[str, dict[str, Any]] = {
    "in order": {"sampler": SequentialSampler(21)},
    "dropping the last": {"drop_last": True},
    "accumulating": {"accumulate": 4},
    "batches of 21": {"batch_size": 21},
    "batches of 30": {"batch_size": 30},
    "batches of 1": {"batch_size": 1},
    "repeated": {"sampler": RepeatedAugmentationSampler(21, 3, 4)},
    "weighted": {"sampler": WeightedRandomSampler(np.arange(21.0), 30)},
    "balanced": {"sampler": BalancedClassSampler(np.arange(21) % 2, 17)},
    "identities": {"sampler": IdentitySampler(np.arange(21) % 5, 3, 2), "batch_size": 6, "group": 3},
}


@cases("changes", ORDERS, on_slow=["batches of 30", "batches of 1"])
def test_batches_follow_order(
    kind: str, make: Callable[..., Loader], index: Index, changes: dict[str, Any]
) -> None:
    order = replace(ORDER, **changes)
    loader = make(order)
    assert len(loader) == len(order)
    check_against_reference(kind, take(loader), index, order, TRAIN, 0)


@pytest.mark.parametrize("kind", [*FAST, "paddle-2"])
def test_iteration_is_one_epoch(make: Callable[..., Loader]) -> None:
    loader = make()
    for epoch in range(3):
        assert loader.state_dict()["epoch"] == epoch
        batches = take(loader)
        assert [valid for _, _, valid, _, _ in batches] == [4, 4, 4, 4, 4, 1]
        labels = np.concatenate([label[:valid] for _, label, valid, _, _ in batches])
        assert sorted(labels) == list(range(21))
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (3, 0)


@pytest.mark.parametrize("kind", FAST)
def test_repeated_image_gets_new_augmentation(make: Callable[..., Loader]) -> None:
    """Seven images come three times, each time with other pixels, and on two ranks the same as on one."""
    order = replace(ORDER, sampler=RepeatedAugmentationSampler(21, 3, 6), batch_size=6)
    batches = take(make(order))
    images, labels = (np.concatenate([each[place][: each[2]] for each in batches]) for place in (0, 1))
    assert len(labels) == 21
    for label in set(labels.tolist()):
        one, two, three = images[labels == label]
        for first, second in ((one, two), (one, three), (two, three)):
            assert np.abs(first - second).max() * GREY_LEVELS > 10
    ranks = [take(make(replace(order, batch_size=3, world=2, rank=rank))) for rank in (0, 1)]
    for whole, *parts in zip(batches, *ranks, strict=True):
        for place in (0, 1):
            together = np.concatenate([part[place][: part[2]] for part in parts])
            np.testing.assert_array_equal(together, whole[place][: whole[2]])


@pytest.mark.parametrize("kind", FAST)
def test_padding_repeats_real_rows(make: Callable[..., Loader]) -> None:
    batches = take(make(replace(ORDER, sampler=ShuffledSampler(18))))
    image, label, valid, _, _ = batches[-1]
    assert valid == 2
    images, labels = (np.concatenate([each[place] for each in batches])[:18] for place in (0, 1))
    for row in range(valid, 4):
        np.testing.assert_array_equal(image[row], images[list(labels).index(label[row])])


@pytest.mark.parametrize("kind", FAST)
def test_sequential_epochs_change_only_crops(make: Callable[..., Loader]) -> None:
    loader = make(replace(ORDER, sampler=SequentialSampler(21)))
    first, second = take(loader), take(loader)
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[1], two[1])
        assert not np.array_equal(one[0], two[0])


@cases(
    "index,size",
    {f"{size}-{source}": (source, size) for source in ("files", "lmdb") for size in (21, 19, 17)},
    on_slow=["21-files"],
    indirect=["index"],
)
def test_two_ranks_load_the_batches_of_one(make: Callable[..., Loader], size: int) -> None:
    whole = take(make(replace(ORDER, sampler=ShuffledSampler(size))))
    ranks = [
        take(make(replace(ORDER, sampler=ShuffledSampler(size), batch_size=2, world=2, rank=rank)))
        for rank in (0, 1)
    ]
    for one, *parts in zip(whole, *ranks, strict=True):
        assert sum(part[2] for part in parts) == one[2]
        for place in (0, 1):
            together = np.concatenate([part[place][: part[2]] for part in parts])
            np.testing.assert_array_equal(together, one[place][: one[2]])
        assert sum(part[3] for part in parts) == pytest.approx(2 * one[3])


@pytest.mark.parametrize("kind", FAST)
def test_positions_identify_samples(make: Callable[..., Loader]) -> None:
    loader = make()
    for step, batch in enumerate(loader):
        assert batch.positions is not None
        np.testing.assert_array_equal(batch.positions, loader.order.at(Cursor(0, step)).indices)
        labels = np.asarray(batch.label.numpy())
        np.testing.assert_array_equal(labels, loader.index.labels[batch.positions])


def test_backends_make_same_decisions(index: Index) -> None:
    """Windows and flips are equal: images differ only by rounding."""
    dali, paddle = (take(MAKERS[name](index, ORDER, TRAIN)) for name in ("dali-cpu", "paddle-2"))
    for one, two in zip(dali, paddle, strict=True):
        assert one[1].tolist() == two[1].tolist()
        assert np.abs(one[0] - two[0]).max() * GREY_LEVELS <= 1.02
        assert np.abs(one[0] - two[0][:, :, :, ::-1]).max() * GREY_LEVELS > 50, "a flip would be visible"


ODD_NAMES = (
    "with blanks .jpg",
    'O\'Neill "x".jpg',
    "Käse 猫.jpg",
    "a\tb.jpg",
    "%2F $x;`y`.jpg",
    b"\xff\xfe.jpg",
)


@pytest.mark.parametrize("kind", FAST)
def test_unusual_file_names_are_read(kind: str, jpeg_folder: Path) -> None:
    names = [os.fsencode(name) for name in ODD_NAMES]
    for name in names:
        shutil.copy(jpeg_folder / "0.jpg", jpeg_folder / os.fsdecode(name))
    (jpeg_folder / "list.txt").write_bytes(b"".join(name + b" 1\n" for name in names))
    images = [image for image, *_ in take(folder_loader(kind, jpeg_folder, 3, EVAL))]
    assert len(np.concatenate(images)) == 6
    assert np.ptp(np.concatenate(images), axis=0).max() == 0


def test_wrong_file_extension_is_ignored(kind: str, jpeg_folder: Path, photos: dict[str, Path]) -> None:
    for number, source in enumerate(("png", "tiff", "bmp", "webp", "jpeg2000")):
        shutil.copy(photos[f"{source}-odd"], jpeg_folder / f"{number}.jpg")
    index = read_list(jpeg_folder, jpeg_folder / "list.txt")
    order = Order(SequentialSampler(12), batch_size=12)
    check_against_reference(kind, take(MAKERS[kind](index, order, EVAL)), index, order, EVAL, 0)

"""Pairs: both images get the same decisions, on every backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from loader_conformance import FAST, MAKERS
from numpy.typing import NDArray
from PIL import Image

from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.loaders.pairs import PairLoader, match_pairs, read_pairs
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import (
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    plan_chain,
)
from ppcls.errors import UserError
from ppcls.registry import TRANSFORMS

KINDS = ["dali-cpu", "paddle-0", "dali-gpu"]
SIZE = 11
ORDER = Order(ShuffledSampler(SIZE), batch_size=4, seed=2)
GREY_LEVELS = NormalizeImage(scale=1.0, mean=(0.0,), std=(1.0,))
GEOMETRY: list[Transform] = [
    DecodeImage(),
    RandCropImage(size=(40, 36), scale=(0.1, 0.5)),
    RandFlipImage(),
    TRANSFORMS["RandomRotation"](degrees=30, prob=0.5),
    GREY_LEVELS,
]
COLOURS: list[Transform] = [
    DecodeImage(),
    RandCropImage(size=(40, 36)),
    TRANSFORMS["ColorJitter"](brightness=0.5, contrast=0.5, saturation=0.5, hue=0.2),
    TRANSFORMS["RandomGrayscale"](prob=0.3),
    GREY_LEVELS,
]
Pair = tuple[NDArray[np.float32], NDArray[np.float32], int]


@pytest.fixture(scope="session")
def folder(scenes: dict[str, Image.Image], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of images of three shapes, each with its negative and a copy."""
    root = tmp_path_factory.mktemp("pairs")
    listings: dict[str, list[str]] = {"negative": [], "copy": []}
    for number in range(SIZE):
        image = list(scenes.values())[number % 3].rotate(number)
        pixels = np.asarray(image)
        image.save(root / f"{number}.png")
        for name, other in (("negative", 255 - pixels), ("copy", pixels)):
            Image.fromarray(other).save(root / f"{name} of {number}.png")
            listings[name].append(f"{number}.png;{name} of {number}.png")
    for name, lines in listings.items():
        (root / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.gpu if "gpu" in name else ()) for name in KINDS])
def make(request: pytest.FixtureRequest, folder: Path) -> Callable[..., PairLoader]:
    def pairs(listing: str, chain: list[Transform], order: Order = ORDER) -> PairLoader:
        indices = read_pairs(folder, folder / f"{listing}.txt", delimiter=";")
        ops = plan_chain(chain, "CHW")
        first, second = (MAKERS[request.param](index, order, ops) for index in indices)
        return PairLoader(first, second)

    return pairs


def take(loader: PairLoader, epochs: int = 1) -> list[Pair]:
    return [
        (np.array(first.image), np.array(second.image), first.valid)
        for _ in range(epochs)
        for first, second in loader
    ]


def assert_equal(found: list[Pair], expected: list[Pair]) -> None:
    assert len(found) == len(expected) > 0
    for one, two in zip(found, expected, strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


def test_negative_stays_negative_after_geometry(make: Callable[..., PairLoader]) -> None:
    chain = [*GEOMETRY[:3], GREY_LEVELS]
    pairs = take(make("negative", chain), epochs=2)
    assert [valid for _, _, valid in pairs] == [4, 4, 3] * 2
    for first, second, _ in pairs:
        np.testing.assert_allclose(first + second, 255, rtol=0, atol=1.01)
        assert np.abs(first - second).mean() > 30


@pytest.mark.parametrize("chain", [GEOMETRY, COLOURS], ids=["geometry", "colours"])
def test_copy_stays_equal(make: Callable[..., PairLoader], chain: list[Transform]) -> None:
    pairs = take(make("copy", chain), epochs=2)
    for first, second, _ in pairs:
        np.testing.assert_array_equal(first, second)
    assert np.abs(pairs[0][0] - pairs[3][0]).mean() > 5, "epochs differ in images and decisions"


@pytest.mark.parametrize("make", FAST, indirect=True)
def test_interrupted_and_resumed_iteration_continues(make: Callable[..., PairLoader]) -> None:
    whole = take(make("negative", GEOMETRY), epochs=2)
    loader = make("negative", GEOMETRY)
    assert len(loader) == 3
    for _ in islice(loader, 2):
        pass
    state = loader.state_dict()
    assert state == ORDER.state_dict(Cursor(0, 2))
    assert_equal(take(loader, epochs=2), whole[2:])
    resumed = make("negative", GEOMETRY)
    resumed.load_state_dict(state)
    assert_equal(take(resumed, epochs=2), whole[2:])


@pytest.mark.parametrize("make", FAST, indirect=True)
def test_two_ranks_load_the_pairs_of_one(make: Callable[..., PairLoader]) -> None:
    whole = take(make("negative", GEOMETRY))
    ranks = [
        take(make("negative", GEOMETRY, replace(ORDER, batch_size=2, world=2, rank=rank))) for rank in (0, 1)
    ]
    for one, *parts in zip(whole, *ranks, strict=True):
        for place in (0, 1):
            together = np.concatenate([part[place][: part[2]] for part in parts])
            np.testing.assert_array_equal(together, one[place][: one[2]])


def test_bad_second_image_keeps_both_loaders_in_step(folder: Path, tmp_path: Path) -> None:
    for number in range(4):
        for name in (f"{number}.png", f"negative of {number}.png"):
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    listing = tmp_path / "list.txt"
    listing.write_text("".join(f"{number}.png;negative of {number}.png\n" for number in range(4)))
    order = replace(ORDER, sampler=ShuffledSampler(4), batch_size=1)
    first, second = (
        PaddleLoader(index, order, plan_chain(GEOMETRY, "CHW"))
        for index in read_pairs(tmp_path, listing, ";")
    )
    whole = take(PairLoader(first, second))
    loader = PairLoader(
        *(PaddleLoader(each.index, order, plan_chain(GEOMETRY, "CHW")) for each in (first, second))
    )
    bad = int(order.at(Cursor(0, 2)).indices[0])
    good = (tmp_path / f"negative of {bad}.png").read_bytes()
    (tmp_path / f"negative of {bad}.png").write_bytes(b"")
    found: list[Pair] = []
    with pytest.raises(BadImageError, match=f"negative of {bad}.png"):
        found.extend(take_each(loader))
    (tmp_path / f"negative of {bad}.png").write_bytes(good)
    assert_equal([*found, *take(loader)], whole)


def take_each(loader: PairLoader):
    for first, second in loader:
        yield np.array(first.image), np.array(second.image), first.valid


def test_different_orders_are_rejected(folder: Path) -> None:
    first, second = read_pairs(folder, folder / "copy.txt", ";")
    ops = plan_chain(GEOMETRY, "CHW")
    with pytest.raises(ValueError, match="expected two loaders with equal orders"):
        PairLoader(PaddleLoader(first, ORDER, ops), PaddleLoader(second, replace(ORDER, seed=3), ops))


def test_list_errors_name_line_numbers(folder: Path, tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    (folder / "text.png").write_text("no image")
    listing.write_text("0.png;copy of 0.png\n\n0.png\n0.png;1.png\n0.png;gone.png\n0.png;text.png\n0.png;\n")
    with pytest.raises(UserError) as caught:
        read_pairs(folder, listing, ";")
    assert str(caught.value).splitlines() == [
        f"{listing}, line 3: expected 'first;second', got 1 path(s)",
        f"{listing}, line 4: expected two images of the same size, got 320x214 and 176x256",
        f"{listing}, line 5: gone.png: no such file or directory",
        f"{listing}, line 6: text.png: not an image",
        f"{listing}, line 7: expected 'first;second', got an empty path",
    ]
    listing.write_text("\n")
    with pytest.raises(UserError, match="the list is empty; expected lines of 'first second'"):
        read_pairs(folder, listing)
    with pytest.raises(UserError, match="can't read this list of pairs: No such file or directory"):
        read_pairs(folder, tmp_path / "none.txt")


def test_size_is_compared_after_exif_orientation(photos: dict[str, Path], tmp_path: Path) -> None:
    turned, upright = photos["turned-landscape"], photos["png-landscape"]
    listing = tmp_path / "list.txt"
    listing.write_text(f"{turned.name} {upright.name}\n")
    first, second = read_pairs(turned.parent, listing)
    assert (first.name(0), second.name(0)) == (str(turned), str(upright))
    assert first.where(0) == f"{listing}, line 1"


def write_tree(folder: Path, names: Sequence[str], size: tuple[int, int] = (8, 6)) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (len(name), 0, 0)).save(file)


@pytest.mark.parametrize("pattern", ["train/{}/*/*", "train/{}/**", "train/{}/[ab]/?.*"])
def test_two_folder_trees_are_pairs(tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "train" / "img", ["a/1.jpg", "a/2.jpg", "b/1.jpg"])
    write_tree(tmp_path / "train" / "gt", ["b/1.png", "a/2.png", "a/1.png"])
    (tmp_path / "train" / "gt" / "a" / ".hidden.png").touch()
    monkeypatch.chdir(tmp_path)
    for root in ("", f"{tmp_path}/"):
        first, second = match_pairs(*(root + pattern.format(name) for name in ("img", "gt")))
        assert [os.fsdecode(first.path(i)) for i in range(3)] == [
            f"{root}train/img/{name}.jpg" for name in ("a/1", "a/2", "b/1")
        ]
        assert [os.fsdecode(second.path(i)) for i in range(3)] == [
            f"{root}train/gt/{name}.png" for name in ("a/1", "a/2", "b/1")
        ]
        assert second.read(0)[:4] == b"\x89PNG"


def test_unmatched_trees_are_explained(tmp_path: Path) -> None:
    write_tree(tmp_path / "img", ["a/1.png", "a/2.png", "a/3.png", "a/3.jpg", "a/4.png", "a/5.png"])
    write_tree(tmp_path / "gt", ["a/1.png", "a/3.png", "a/6.png"])
    write_tree(tmp_path / "gt", ["a/4.png"], (9, 6))
    (tmp_path / "gt" / "a" / "5.png").write_text("text")
    img, gt = (f"{tmp_path}/{name}/*/*" for name in ("img", "gt"))
    with pytest.raises(UserError) as raised:
        match_pairs(img, gt)
    assert str(raised.value).split("\n") == [
        f"{tmp_path}/img/a/2.png: no image of the same name matches {gt}",
        f"{tmp_path}/img/a/3.jpg: 3.png has the same name, so the pair is not clear",
        f"{tmp_path}/img/a/4.png and {tmp_path}/gt/a/4.png: expected two images of the same size, got 8x6 "
        "and 9x6",
        f"{tmp_path}/img/a/5.png and {tmp_path}/gt/a/5.png: {tmp_path}/gt/a/5.png: not an image",
        f"{tmp_path}/gt/a/6.png: no image of the same name matches {img}",
    ]
    with pytest.raises(UserError, match="no file matches this pattern"):
        match_pairs(img, f"{tmp_path}/none/*")

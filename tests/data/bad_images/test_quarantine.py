"""Skipping bad images with each loader: they are not counted, and nothing else changes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ppcls.data.bad_images.lists import BadImageError, read_bad_images, write_bad_images
from ppcls.data.bad_images.quarantine import CleanOrder, Quarantine, _FirstGood, describe_skipped
from ppcls.data.bad_images.search import bisect_bad_images, error_reason, is_image_error
from ppcls.data.index.files import FileIndex
from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali import loader as dali_loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, RandCropImage, ResizeImage, plan_chain

CHAIN: list[Transform] = [DecodeImage(), RandCropImage(size=(20, 20)), NormalizeImage()]
TRAIN = plan_chain(CHAIN, "CHW")
EVAL = plan_chain([DecodeImage(), ResizeImage(size=(20, 20)), NormalizeImage()], "CHW")
MAKERS: dict[str, Callable[..., Loader]] = {
    "dali-cpu": partial(DaliLoader, settings=DaliSettings(threads=2, prefetch=4)),  # two pipelines
    "dali-gpu": partial(DaliLoader, settings=DaliSettings(0, threads=2)),
    "paddle-0": PaddleLoader,
    "paddle-2": partial(PaddleLoader, settings=PaddleSettings(workers=2)),
}
# Workers take seconds to restart after each bad image, so "paddle-2" runs only where they matter.
ON_CPU = ["dali-cpu", "paddle-0"]
COUNT = 22
BAD = {2: b"", 3: b"no image", 7: None, 8: b"\xff\xd8\xff", 9: b"", 15: b"x" * 5000, 21: b""}


@pytest.fixture
def good(photos: dict[str, Path], tmp_path: Path) -> FileIndex:
    """22 JPEGs; each label is its position."""
    files = [photos[f"jpeg420-{scene}"] for scene in ("odd", "portrait", "landscape")]
    for number in range(COUNT):
        shutil.copy(files[number % 3], tmp_path / f"{number:02d}.jpg")
    return FileIndex(
        root=tmp_path,
        paths=np.array([b"%02d.jpg" % number for number in range(COUNT)]),
        labels=np.arange(COUNT),
        source=tmp_path / "list.txt",
        lines=np.arange(1, COUNT + 1),
    )


def spoil(index: FileIndex) -> FileIndex:
    for position, content in BAD.items():
        file = Path(index.name(position))
        file.unlink()
        if content is not None:
            file.write_bytes(content)
    return index


def take(loader: Loader, epochs: int = 1) -> list[dict[int, np.ndarray]]:
    """Returns the real images of each batch by their labels."""
    return [
        dict(zip(np.array(batch.label)[: batch.valid].tolist(), np.array(batch.image), strict=False))
        for _ in range(epochs)
        for batch in loader
    ]


ORDERS = {
    "in order": Order(SequentialSampler(COUNT), batch_size=4),
    "shuffled": Order(ShuffledSampler(COUNT), batch_size=5, seed=1),
    "second rank": Order(SequentialSampler(COUNT), batch_size=2, rank=1, world=2),
    "one batch": Order(SequentialSampler(COUNT), batch_size=COUNT, group=2),
}


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        *(
            pytest.param(kind, order, id=f"{kind}-{name}")
            for kind in ON_CPU
            for name, order in ORDERS.items()
        ),
        pytest.param("paddle-2", ORDERS["shuffled"], id="paddle-2-shuffled"),
        # On a GPU a restart after a bad image takes seconds, too.
        pytest.param("dali-gpu", ORDERS["shuffled"], id="dali-gpu-shuffled", marks=pytest.mark.gpu),
    ],
)
def test_quarantine_leaves_other_images_unchanged(
    kind: str, order: Order, good: FileIndex, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = take(MAKERS[kind](good, order, TRAIN), epochs=2)
    index, listing = spoil(good), tmp_path / "out/bad_images.txt"
    loader = MAKERS[kind](index, order, TRAIN, quarantine=Quarantine(index, listing))
    found = take(loader, epochs=2)
    assert len(found) == len(expected)
    seen = set()
    for batch, whole in zip(found, expected, strict=True):
        assert set(batch) == set(whole) - set(BAD)
        seen |= set(whole) & set(BAD)
        for label, image in batch.items():
            np.testing.assert_array_equal(image, whole[label])
    assert {int(Path(each.name).stem) for each in read_bad_images(listing)} == seen
    assert loader.quarantine is not None
    assert loader.quarantine.listed == len(seen)
    assert capfd.readouterr().err.count("bad image, skipped: ") == len(seen), "each is reported once"


@pytest.mark.parametrize("kind", ON_CPU)
def test_evaluation_skips_bad_images_on_all_ranks(kind: str, good: FileIndex, tmp_path: Path) -> None:
    index, counted = spoil(good), 0
    for rank in range(3):
        order = Order(SequentialSampler(COUNT), batch_size=3, rank=rank, world=3)
        quarantine = Quarantine(index, tmp_path / "bad.txt")
        counted += sum(batch.valid for batch in MAKERS[kind](index, order, EVAL, quarantine=quarantine))
    assert counted == COUNT - len(BAD)
    assert len(read_bad_images(tmp_path / "bad.txt")) == len(BAD)


@pytest.mark.parametrize("kind", ON_CPU)
def test_quarantine_raises_above_max_errors(kind: str, good: FileIndex, tmp_path: Path) -> None:
    index, listing = spoil(good), tmp_path / "bad.txt"
    order = Order(SequentialSampler(COUNT), batch_size=2)
    limited = MAKERS[kind](index, order, TRAIN, quarantine=Quarantine(index, listing, limit=4))
    with pytest.raises(BadImageError, match=r"bad images, more than max_errors \(4\); .*bad.txt lists them"):
        take(limited)
    assert len(read_bad_images(listing)) > 4
    enough = MAKERS[kind](index, order, TRAIN, quarantine=Quarantine(index, listing, limit=len(BAD)))
    assert sum(map(len, take(enough))) == COUNT - len(BAD)


@pytest.mark.parametrize("kind", ON_CPU)
def test_quarantine_raises_if_all_images_are_bad(kind: str, good: FileIndex, tmp_path: Path) -> None:
    for position in range(COUNT):
        Path(good.name(position)).write_bytes(b"")
    order, listing = Order(ShuffledSampler(COUNT), batch_size=4), tmp_path / "bad.txt"
    with pytest.raises(BadImageError, match=r"list\.txt: all images are bad; .*bad\.txt lists the bad ones"):
        take(MAKERS[kind](good, order, TRAIN, quarantine=Quarantine(good, listing)))
    assert len(read_bad_images(listing)) == COUNT


@pytest.mark.parametrize("kind", ON_CPU)
def test_quarantine_resumes_with_the_same_batches(kind: str, good: FileIndex, tmp_path: Path) -> None:
    index, order = spoil(good), Order(ShuffledSampler(COUNT), batch_size=4, seed=2)
    whole = take(MAKERS[kind](index, order, TRAIN, quarantine=Quarantine(index, tmp_path / "a.txt")), 2)
    for step in range(len(order)):
        loader = MAKERS[kind](index, order, TRAIN, quarantine=Quarantine(index, tmp_path / f"{step}.txt"))
        loader.load_state_dict(order.state_dict(Cursor(1, step)))
        for found, expected in zip(take(loader), whole[len(order) + step :], strict=True):
            assert list(found) == list(expected)
            for label, image in found.items():
                np.testing.assert_array_equal(image, expected[label])


def test_recheck_keeps_only_images_that_are_still_bad(good: FileIndex, tmp_path: Path) -> None:
    whole = (Path(good.name(7))).read_bytes()
    index, listing, known = spoil(good), tmp_path / "bad.txt", tmp_path / "known.txt"
    first = Quarantine(index, known)
    first.recheck([known], DecodeImage())  # nothing there yet
    take(MAKERS["paddle-0"](index, Order(SequentialSampler(COUNT), batch_size=2), TRAIN, quarantine=first))
    Path(index.name(7)).write_bytes(whole)
    second = Quarantine(index, listing)
    second.recheck([known, listing], DecodeImage())
    assert {position for position in range(COUNT) if position in second} == set(BAD) - {7}
    assert len(read_bad_images(listing)) == len(BAD) - 1


def test_dali_loader_bisects_images_that_only_dali_rejects(
    good: FileIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numpy's look is passed over, so that DALI's own failures must tell."""
    monkeypatch.setattr(dali_loader, "find_undecodable", lambda *_: {})
    index, order = spoil(good), Order(SequentialSampler(COUNT), batch_size=6)
    listing = tmp_path / "bad.txt"
    found = take(MAKERS["dali-cpu"](index, order, TRAIN, quarantine=Quarantine(index, listing)))
    assert sorted(label for batch in found for label in batch) == sorted(set(range(COUNT)) - set(BAD))
    reasons = {int(Path(each.name).stem): each.reason for each in read_bad_images(listing)}
    assert set(reasons) == set(BAD)
    assert reasons[7].startswith("DALI can't ")
    raw = re.compile(r"\n|traceback|nvImageCodec|_parser|_decoder")
    assert not [reason for reason in reasons.values() if raw.search(reason)]


def test_dali_loader_without_quarantine_names_the_image(
    good: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dali_loader, "find_undecodable", lambda *_: {})
    index = spoil(good)
    with pytest.raises(BadImageError, match=r"02\.jpg \(.*list.txt, line 3\): DALI can't "):
        take(MAKERS["dali-cpu"](index, Order(SequentialSampler(COUNT), batch_size=3), TRAIN))


@given(st.sets(st.integers(0, 40)), st.integers(1, 41))
def test_bisect_finds_all_bad_images(culprits: set[int], count: int) -> None:
    def fails(positions: list[int]) -> str | None:
        return "encountered: no" if culprits & set(positions) else None

    assert set(bisect_bad_images(list(range(count)), fails)) == culprits & set(range(count))


def test_error_reason_is_the_cause_in_one_line() -> None:
    text = (
        "Critical error in pipeline:\nError in CPU operator `nvidia.dali.fn.decoders.image`,\n"
        "which was used in the pipeline definition with the following traceback:\n\n  File ...\n\n"
        "encountered:\n\nFailed to decode sample #0 : \nCurrent pipeline object is no longer valid."
    )
    assert error_reason(text) == "Failed to decode sample #0"
    assert error_reason("something else") == "something else"
    assert is_image_error(text)
    assert not is_image_error(text.replace("Failed to decode", "CUDA runtime API error: out of memory"))
    assert not is_image_error(text.replace("decoders.image", "resize"))


@given(
    st.integers(1, 6), st.sampled_from([1, 2, 3]), st.sets(st.integers(0, 39)), st.integers(1, 3), st.data()
)
def test_replace_bad_keeps_good_rows_and_groups(
    groups: int, group: int, bad: set[int], world: int, data: Any
) -> None:
    """For any group and rank: good rows once, in order, whole groups first; the weight follows."""
    sampler = ShuffledSampler(40) if data.draw(st.booleans()) else SequentialSampler(40)
    order = Order(
        sampler, groups * group, rank=data.draw(st.integers(0, world - 1)), world=world, group=group
    )
    quarantine = Quarantine.__new__(Quarantine)
    quarantine._positions = bad
    quarantine._good = _FirstGood(bad)
    if len(bad) == 40:
        return
    for step in range(len(order)):
        cursor = Cursor(0, step)
        before, after = order.at(cursor), CleanOrder(order, quarantine).at(cursor)
        kept = [each for each in before.indices[: before.valid].tolist() if each not in bad]
        real = after.indices[: after.valid].tolist()
        assert sorted(real) == sorted(kept)
        assert len(after.indices) == len(before.indices)
        assert not set(after.indices.tolist()) & bad
        if before.valid:
            assert after.weight == pytest.approx(before.weight * after.valid / before.valid)
        groups_of_rows = [before.indices[at : at + group].tolist() for at in range(0, before.valid, group)]
        unbroken = [each for rows in groups_of_rows if not set(rows) & bad for each in rows]
        whole = [each for each in unbroken if each in kept]  # a last group may end in padding
        assert real[: len(whole)] == whole


def test_skip_settings_require_on_error_skip() -> None:
    some: dict[str, Any] = {"image_root": "a", "cls_label_path": "b", "transform_ops": tuple(CHAIN)}
    assert ImageNetDataset(**some).on_error == "raise"
    assert ImageNetDataset(**some, on_error="skip", max_errors=3, bad_images="c").max_errors == 3
    for name, value in (("max_errors", 3), ("bad_images", "c")):
        with pytest.raises(ValidationError, match=f"{name} needs on_error: skip, but on_error is raise"):
            ImageNetDataset(**some, **{name: value})


def test_quarantine_reports_an_unwritable_list(good: FileIndex, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    index = spoil(good)
    quarantine = Quarantine(index, tmp_path / "file" / "bad.txt")
    with pytest.raises(Exception, match="can't write this list of bad images"):
        quarantine.add({2: "empty"})
    write_bad_images(tmp_path / "fine.txt", [])
    assert read_bad_images(tmp_path / "fine.txt") == []


def test_skipped_images_are_described_by_the_list_of_all_loaders(good: FileIndex, tmp_path: Path) -> None:
    quarantine = Quarantine(good, tmp_path / "bad.txt")
    assert describe_skipped([]) is None
    assert describe_skipped([None]) is None
    assert describe_skipped([None, quarantine]) is None
    quarantine.add(dict.fromkeys(range(3), "empty"))
    assert describe_skipped([None, quarantine]) == f"3 bad images skipped, listed in {tmp_path / 'bad.txt'}"

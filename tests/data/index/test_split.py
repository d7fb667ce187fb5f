"""Splits: exact, stratified, independent of the order of the images."""

from __future__ import annotations

import hashlib
import itertools
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.index.files import FileIndex, read_folder, read_list
from ppcls.data.index.split import (
    allocate_validation,
    choose_validation,
    validation_size,
    write_list,
    write_split,
)
from ppcls.errors import UserError


def index_of(labels: list[int], names: list[int] | None = None) -> FileIndex:
    """Returns images that are on no disk."""
    numbers = list(range(len(labels))) if names is None else names
    paths = np.array([b"some folder/%d.jpg" % number for number in numbers])
    return FileIndex(Path("root"), paths, np.array(labels, np.int64), Path("list.txt"))


COUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def allocate_slowly(counts: list[int], total: int) -> list[int]:
    """Defines the result of `allocate_validation` with sums over all classes for each image."""
    exact = [Fraction(count * total, sum(counts)) for count in counts]
    least = int(total >= sum(count > 1 for count in counts))
    shares = [min(max(int(share), least), count - 1) for share, count in zip(exact, counts, strict=True)]
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    while rest := total - sum(shares):
        candidates = [label for label, count in enumerate(counts) if shares[label] < count - 1]
        candidates.sort(key=lambda label: shares[label] - exact[label])
        for label in candidates[:rest]:
            shares[label] += 1
    return shares


@given(COUNTS, st.data())
def test_allocate_validation_agrees_with_its_definition(counts: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(counts) - len(counts)))
    assert allocate_validation(counts, total) == allocate_slowly(counts, total)


@given(st.lists(st.integers(0, 9), min_size=10, max_size=60), st.integers(0, 99))
def test_choose_validation_takes_the_smallest_hashes_of_each_class(labels: list[int], seed: int) -> None:
    index = index_of([*labels, *labels])
    chosen = choose_validation(index, Fraction(1, 3), seed)
    hashes = np.array(
        [hashlib.blake2b(b"%d\0" % seed + path, digest_size=16).hexdigest() for path in index.paths]
    )
    for label in set(labels):
        positions = np.flatnonzero(index.labels == label)
        count = int(chosen[positions].sum())
        assert set(positions[chosen[positions]]) == set(positions[np.argsort(hashes[positions])[:count]])


@given(COUNTS, st.data())
def test_allocate_validation_is_proportional(counts: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(counts) - len(counts)))
    given = allocate_validation(counts, total)
    assert sum(given) == total
    exact = [count * total / sum(counts) for count in counts]
    for count, each, wanted in zip(counts, given, exact, strict=True):
        assert 0 <= each < count
        if min(exact) >= 1:
            assert each > wanted - 1, "no class gets less than its share, rounded down"
    if total >= sum(count > 1 for count in counts):
        assert all(each >= 1 for count, each in zip(counts, given, strict=True) if count > 1)
    if all(np.ceil(wanted) < count for count, wanted in zip(counts, exact, strict=True)):
        assert all(each < wanted + 1 for each, wanted in zip(given, exact, strict=True))


@given(COUNTS, st.data())
def test_allocate_validation_differs_by_one_for_equal_classes(counts: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(counts) - len(counts)))
    found: dict[int, list[int]] = {}
    for count, each in zip(counts, allocate_validation(counts, total), strict=True):
        found.setdefault(count, []).append(each)
    assert all(max(each) - min(each) <= 1 for each in found.values())


@given(st.lists(st.integers(0, 4), min_size=12, max_size=60), st.integers(0, 10**9), st.randoms())
def test_choose_validation_ignores_the_order(labels: list[int], seed: int, random: Random) -> None:
    numbers = list(range(len(labels)))
    random.shuffle(numbers)
    straight = choose_validation(index_of(labels), 5, seed)
    shuffled = choose_validation(index_of([labels[each] for each in numbers], numbers), 5, seed)
    assert straight.sum() == 5
    assert (shuffled == straight[numbers]).all()


@pytest.mark.parametrize("classes", [10, 3000])
def test_all_classes_are_sorted_together(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for the images of each class would need images x classes operations."""
    handled = 0

    def count(function: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal handled
            handled += max(np.size(argument) for argument in arguments)
            return function(*arguments, **options)

        return counted

    index = index_of([at % classes for at in range(3 * classes)])
    for name in ("lexsort", "unique", "argsort", "sort", "flatnonzero", "isin"):
        monkeypatch.setattr(f"ppcls.data.index.split.np.{name}", count(getattr(np, name)))
    assert choose_validation(index, Fraction(1, 3), 0).sum() == classes
    assert handled < 10 * len(index)


def test_choose_validation_gives_each_class_of_two_images_one() -> None:
    assert allocate_validation([60, 2, 1], 13) == [12, 1, 0]
    index = index_of([0] * 60 + [1] * 2 + [2])
    assert np.bincount(index.labels[choose_validation(index, Fraction(1, 5), 0)]).tolist() == [12, 1]
    pairs = index_of([0, 0, 1, 1, 2, 2])  # a fifth of six images is one
    assert np.bincount(pairs.labels[choose_validation(pairs, Fraction(1, 5), 0)]).tolist() == [1, 1, 1]


def test_choose_validation_depends_on_the_seed() -> None:
    index = index_of([0] * 100)
    choices = [choose_validation(index, Fraction(1, 2), seed).tobytes() for seed in (0, 1, 2, 0)]
    assert len(set(choices)) == 3
    assert choices[0] == choices[3]


def test_choose_validation_is_stable_over_versions() -> None:
    """Lists that were made stay repeatable: these numbers must not change with a version."""
    assert np.flatnonzero(choose_validation(index_of([0] * 20), 4, 7)).tolist() == [0, 5, 13, 15]


def test_choose_validation_changes_little_for_added_image() -> None:
    before = choose_validation(index_of([0] * 100), Fraction(1, 5), 0)
    after = choose_validation(index_of([0] * 101), Fraction(1, 5), 0)[:100]
    assert (before != after).sum() <= 1


def test_validation_size_checks_its_limits() -> None:
    assert validation_size(Fraction("0.2"), 1797, 10) == 359
    assert validation_size(500, 1797, 10) == 500
    assert validation_size(1, 3, 2) == 1
    for wrong in (Fraction("0.001"), 91, Fraction("0.95")):
        with pytest.raises(UserError, match=r"--val: .*expected 1 to 90"):
            validation_size(wrong, 100, 10)
    with pytest.raises(UserError, match="--val: expected at least 3 images for 2 classes, found 2"):
        validation_size(Fraction("0.2"), 2, 2)


def test_choose_validation_rejects_repeated_image() -> None:
    with pytest.raises(UserError, match=r"some folder/1\.jpg is already listed"):
        choose_validation(index_of([0, 0, 0], [0, 1, 1]), 1, 0)


def test_write_split_round_trips(tmp_path: Path) -> None:
    root = tmp_path / "images"
    for number in range(20):
        path = root / ("a b", "ü")[number % 2] / f"{number} x.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    index = read_folder(root, (".jpg",))
    validates = choose_validation(index, Fraction(1, 4), 0)
    out = tmp_path / "deep" / "lists"
    write_split(index, validates, out, ("a b", "ü"), "\t")
    train, val = (read_list(root, out / f"{name}_list.txt", "\t", 2) for name in ("train", "val"))
    assert train.paths.tolist() == index.paths[~validates].tolist()
    assert val.paths.tolist() == index.paths[validates].tolist()
    assert val.labels.tolist() == index.labels[validates].tolist()
    assert (out / "label_list.txt").read_text() == "0 a b\n1 ü\n"
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UserError, match="exists already; nothing was written"):
        write_split(index, ~validates, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("name", ["a\nb.jpg", " a.jpg"])
def test_write_split_rejects_names_that_break_lines(tmp_path: Path, name: str) -> None:
    index = FileIndex(tmp_path, np.array([name.encode(), b"b.jpg"]), np.zeros(2, np.int64), tmp_path)
    with pytest.raises(UserError, match="a list can't contain"):
        write_split(index, np.array([True, False]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(st.lists(st.integers(0, 4), min_size=12, max_size=60), st.integers(0, 99), st.data())
def test_groups_stay_in_one_list_and_classes_keep_training_images(
    labels: list[int], seed: int, data: st.DataObject
) -> None:
    labels = [*labels, *labels]
    positions = data.draw(st.permutations(range(len(labels))))
    sizes = data.draw(st.lists(st.integers(2, 5), max_size=6))
    starts = np.cumsum([0, *sizes])
    groups = [
        list(positions[first:last]) for first, last in itertools.pairwise(starts) if last <= len(labels)
    ]
    index = index_of(labels)
    chosen = choose_validation(index, Fraction(1, 4), seed, groups=groups)
    for group in groups:
        assert len(set(chosen[group].tolist())) == 1
    assert set(labels) == set(index.labels[~chosen].tolist())
    singles = set(range(len(labels))) - {position for group in groups for position in group}
    for label in set(labels):
        if sum(labels[position] == label for position in singles) > 1:
            assert chosen[index.labels == label].any()
    reversed_groups = [group[::-1] for group in groups[::-1]]
    np.testing.assert_array_equal(
        chosen, choose_validation(index, Fraction(1, 4), seed, groups=reversed_groups)
    )


def test_name_with_a_line_break_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    index = index_of([0, 1, 0, 1])
    paths = np.array([b"a/1.jpg", b"a/two\nlines.jpg", b"a/3.jpg", b"a/4.jpg"])
    broken = FileIndex(index.root, paths, index.labels, index.source)
    with pytest.raises(UserError, match=r"two.*lines\.jpg: a list of images can't contain this name"):
        write_list(tmp_path / "list.txt", broken, np.ones(4, bool))
    assert not list(tmp_path.iterdir())

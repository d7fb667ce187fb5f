"""Finds duplicates, and series of pictures such as bursts."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ppcls.audit.neighbours import Neighbours

if TYPE_CHECKING:  # only for annotations
    from ppcls.audit.images import Pictures

# Two pictures are near duplicates if both the distance of their features and the difference of their grey
# copies (1 minus the correlation) are far below what is usual for nearest neighbours. Each pair is the
# largest distance and the largest difference, relative to the usual ones. Small digits are similar to each
# other, and photographs are not, so no absolute limits fit both.
_LIMITS = ((1.5, 0.1), (0.35, 0.2), (0.15, 0.6))
_LEAST_DIFFERENCE = 0.02  # usual difference if most pictures have duplicates
_BLOCK = 16_384  # pairs that are compared at a time
_BURST_SHARE = 0.5
_SHORTEST_BURST = 3


@dataclass(frozen=True)
class DuplicateGroups:
    """Groups of pictures of which all but one are redundant.

    Attributes:
        exact: Groups of files with the same content.
        near: Groups of files that show the same picture, and of which at least two have different contents.
    """

    exact: list[list[int]]
    near: list[list[int]]

    @property
    def all(self) -> list[list[int]]:
        """All groups, each picture in one of them."""
        joined = {position for group in self.near for position in group}
        return [*self.near, *(group for group in self.exact if not joined.intersection(group))]


def find_duplicates(pictures: Pictures, neighbours: Neighbours) -> DuplicateGroups:
    """Returns the groups of exact and of near duplicates."""
    by_hash: dict[bytes, list[int]] = defaultdict(list)
    for position, digest in enumerate(pictures.hashes):
        if digest is not None:
            by_hash[digest].append(position)
    exact = [group for group in by_hash.values() if len(group) > 1]
    pairs = [(group[0], other) for group in exact for other in group[1:]]
    groups = join_groups([*pairs, *_near_pairs(pictures, neighbours)])
    near = [group for group in groups if len({pictures.hashes[position] for position in group}) > 1]
    return DuplicateGroups(exact, near)


def _near_pairs(pictures: Pictures, neighbours: Neighbours) -> Iterator[tuple[int, int]]:
    first, column = np.nonzero(neighbours.positions >= 0)
    second = neighbours.positions[first, column]
    distances = neighbours.distances[first, column]
    copies = pictures.copies
    differences = np.empty(len(first), np.float32)
    for start in range(0, len(first), _BLOCK):  # all pairs of 70,000 pictures would need 1.4 GB
        pairs = slice(start, start + _BLOCK)
        differences[pairs] = 1 - np.einsum("pd,pd->p", copies[first[pairs]], copies[second[pairs]])
    nearest = (column == 0) & np.isfinite(differences)
    if not nearest.any():
        return
    usual = max(float(np.median(differences[nearest])), _LEAST_DIFFERENCE)
    chosen = np.zeros(len(first), np.bool_)
    for distance, difference in _LIMITS:
        chosen |= (distances <= distance * neighbours.typical) & (differences <= difference * usual)
    yield from zip(first[chosen].tolist(), second[chosen].tolist(), strict=True)


def join_groups(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the connected groups of pairs, sorted, each with at least two members."""
    parents: dict[int, int] = {}

    def root(member: int) -> int:
        while parents.setdefault(member, member) != member:
            parents[member] = parents[parents[member]]
            member = parents[member]
        return member

    for first, second in pairs:
        parents[root(first)] = root(second)
    groups: dict[int, list[int]] = defaultdict(list)
    for member in sorted(parents):
        groups[root(member)].append(member)
    return sorted(group for group in groups.values() if len(group) > 1)


def find_bursts(pictures: Pictures, neighbours: Neighbours) -> list[list[int]]:
    """Returns series of at least three similar pictures whose names follow each other in one folder."""
    close = _BURST_SHARE * neighbours.typical
    nearest = {
        (first, int(neighbours.positions[first, column]))
        for first, column in np.argwhere(neighbours.distances <= close).tolist()
    }
    order = sorted(range(len(pictures)), key=lambda position: _natural(pictures.files[position]))
    pairs = []
    for first, second in itertools.pairwise(order):
        same_folder = os.path.dirname(pictures.files[first]) == os.path.dirname(pictures.files[second])  # noqa: PTH120
        if same_folder and ((first, second) in nearest or (second, first) in nearest):
            pairs.append((first, second))
    return [group for group in join_groups(pairs) if len(group) >= _SHORTEST_BURST]


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts ``2.jpg`` before ``10.jpg``."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts)]

"""What the audit finds in vectors and labels whose faults are known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppcls.audit.duplicates import join_groups
from ppcls.audit.findings import Audit, audit
from ppcls.audit.images import SIDE, Pictures
from ppcls.audit.labels import find_suspicious_labels
from ppcls.audit.neighbours import find_neighbours, project


def _pictures(count: int, **changes: object) -> tuple[Pictures, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    vectors = rng.normal(size=(count, 24)).astype(np.float32) + 4 * np.eye(3, 24, dtype=np.float32)[labels]
    copies = rng.normal(size=(count, SIDE * SIDE)).astype(np.float32)
    copies /= np.linalg.norm(copies, axis=1, keepdims=True)
    values: dict[str, object] = {
        "files": [f"{label}/{number:03}.jpg" for number, label in enumerate(labels)],
        "labels": labels,
        "classes": ("a", "b", "c"),
        "splits": ["train" if number % 5 else "val" for number in range(count)],
        "hashes": [bytes([number % 256, number // 256]) for number in range(count)],
        "copies": copies,
    }
    return Pictures(**{**values, **changes}), vectors  # type: ignore[arg-type]


def _audit(pictures: Pictures, vectors: np.ndarray) -> Audit:
    return audit(pictures, find_neighbours(vectors), None)


def test_duplicates_are_one_finding_of_the_most_serious_kind() -> None:
    pictures, vectors = _pictures(60)
    for copy, original in ((31, 1), (4, 10), (47, 20), (23, 8)):  # train, val; train, val; classes; train
        vectors[copy] = vectors[original] + 0.01
        pictures.copies[copy] = pictures.copies[original]
    pictures.hashes[31] = pictures.hashes[1]
    pictures.labels[23] = pictures.labels[8]
    pictures.labels[47] = (pictures.labels[20] + 1) % 3
    pictures.labels[[4, 10]] = 1
    pictures.labels[[1, 31]] = 1
    result = _audit(pictures, vectors)
    kinds = {finding.positions: finding.kind for finding in result.findings if len(finding.positions) > 1}
    assert kinds == {(1, 31): "exact", (4, 10): "leak", (20, 47): "contradiction", (8, 23): "near"}
    leak = result.of_kind("leak")[0]
    assert [pictures.splits[position] for position in leak.redundant] == ["train"]
    assert result.of_kind("contradiction")[0].redundant == ()


def test_strangers_series_small_classes_and_unreadable_pictures() -> None:
    pictures, vectors = _pictures(90, classes=("a", "b", "c", "empty"))
    vectors[50] = -30 * np.ones(24)
    names = [f"b/{number}.jpg" for number in (9, 10, 11)]
    for place, (position, name) in enumerate(zip((61, 64, 67), names, strict=True)):
        pictures.files[position] = name
        vectors[position] = vectors[61] + 0.3 * place
    vectors[7] = np.nan
    pictures.copies[7] = np.nan
    result = _audit(pictures, vectors)
    assert result.of_kind("outlier")[0].positions == (50,)
    assert [finding.positions for finding in result.of_kind("burst")] == [(61, 64, 67)]
    assert [finding.text for finding in result.of_kind("small")] == ["empty: 0 pictures"]
    assert result.unreadable == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_groups_are_the_connected_parts_of_the_pairs(pairs: list[tuple[int, int]]) -> None:
    groups = join_groups(pairs)
    place = {member: number for number, group in enumerate(groups) for member in group}
    assert all(place.get(a) == place.get(b) for a, b in pairs if a != b)
    assert len(place) == sum(map(len, groups))
    assert set(place) == {member for a, b in pairs if a != b for member in (a, b)}


def test_neighbours_are_those_of_a_full_search() -> None:
    vectors = np.random.default_rng(0).normal(size=(700, 40)).astype(np.float32)
    vectors[3] = np.nan
    found = find_neighbours(vectors)
    unit = vectors - np.nanmean(vectors, axis=0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    similarity = np.nan_to_num(unit @ unit.T, nan=-9)
    np.fill_diagonal(similarity, -9)
    known = np.arange(700) != 3
    assert (found.positions[known, 0] == similarity[known].argmax(axis=1)).mean() > 0.99
    assert (found.positions[3] == -1).all()


def test_few_long_vectors_keep_their_distances() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 300)).astype(np.float32)
    found = project(vectors)
    assert found.shape == (40, 40)
    centred = vectors - vectors.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(found @ found.T, unit @ unit.T, atol=1e-5)


def test_few_vectors_have_few_neighbours() -> None:
    for count in range(4):
        found = find_neighbours(np.eye(4, dtype=np.float32)[:count])
        assert (found.positions >= 0).sum() == (count * (count - 1) if count > 1 else 0)


def test_wrong_labels_come_first() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 300)
    probabilities = 0.02 + 0.9 * np.eye(3)[truth] + 0.03 * rng.random((300, 3))
    probabilities = (probabilities / probabilities.sum(axis=1, keepdims=True)).astype(np.float32)
    labels = truth.copy()
    wrong = rng.permutation(300)[:15]
    labels[wrong] = (labels[wrong] + 1) % 3
    probabilities[0] = np.nan
    suspicious = find_suspicious_labels(probabilities, labels)
    assert {position for position, _, _ in suspicious} == set(wrong.tolist()) - {0}
    assert all(suggested == truth[position] for position, suggested, _ in suspicious)
    scores = [score for _, _, score in suspicious]
    assert scores == sorted(scores, reverse=True)

"""Equal paths are found with hashes as with sets of paths."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.data.index.arrays import path_hashes
from ppcls.data.index.arrays.path_hashes import find_common, find_repeated, hash_paths

PATHS = st.lists(
    st.lists(st.sampled_from([b"a", b"b", b".", b"c.jpg", b"", b"long" * 9]), min_size=1, max_size=4)
    .map(b"/".join)
    .map(lambda path: b"x" + path),
    min_size=1,
    max_size=30,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_hashes, "_PIECE", 7)
    monkeypatch.setattr(path_hashes, "_BUCKETS", 1 << 4)


@settings(max_examples=50, deadline=None)
@given(PATHS)
def test_find_repeated_agrees_with_a_counter(paths: list[bytes]) -> None:
    counts = Counter(paths)
    expected = [at for at, path in enumerate(paths) if counts[path] > 1]
    assert find_repeated(np.array(paths)).tolist() == expected


@settings(max_examples=50, deadline=None)
@given(PATHS, PATHS, st.sampled_from([(b"/r", b"/r"), (b"/r", b"/r/xa"), (b"/r/xb", b"/r"), (b"/r", b"/s")]))
def test_find_common_agrees_with_sets(
    first: list[bytes], second: list[bytes], roots: tuple[bytes, bytes]
) -> None:
    expected = {os.path.normpath(roots[0] + b"/" + path) for path in first if b"./" in path or b"//" in path}
    expected |= {roots[0] + b"/" + path for path in first if not (b"./" in path or b"//" in path)}
    others = {os.path.normpath(roots[1] + b"/" + path) for path in second if b"./" in path or b"//" in path}
    others |= {roots[1] + b"/" + path for path in second if not (b"./" in path or b"//" in path)}
    assert find_common((roots[0], np.array(first)), (roots[1], np.array(second))) == sorted(expected & others)


def test_hashes_do_not_depend_on_the_width() -> None:
    paths = np.array([b"a/b.jpg", b"c"])
    assert (hash_paths(paths) == hash_paths(paths.astype("S40"))).all()
    assert len(set(hash_paths(np.array([b"%d" % at for at in range(10000)])).tolist())) == 10000

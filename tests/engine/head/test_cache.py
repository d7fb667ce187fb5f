"""The cache of features finds what it stored, and ignores damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ppcls.engine.head.cache import FeatureCache, hash_arrays

KEYS = [bytes([number]) * 16 for number in range(4)]


def _filled(folder: Path) -> FeatureCache:
    cache = FeatureCache(folder)
    cache.add([*KEYS[:3], None], np.arange(8, dtype=np.float32).reshape(4, 2))
    cache.save()
    return cache


def test_stored_features_are_read_by_another_process(tmp_path: Path) -> None:
    _filled(tmp_path)
    read = FeatureCache(tmp_path)
    assert len(read) == 3
    np.testing.assert_array_equal(read.get(KEYS[1]), [2, 3])
    assert read.get(KEYS[3]) is None
    read.add([KEYS[3], KEYS[0]], np.full((2, 2), 9, np.float32))
    read.save()
    again = FeatureCache(tmp_path)
    np.testing.assert_array_equal(again.get(KEYS[3]), [9, 9])
    np.testing.assert_array_equal(again.get(KEYS[0]), [0, 1])


@given(at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
@example(at=456, value=1, cut=False)  # encrypted
@example(at=456, value=32, cut=False)  # unknown compression
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_never_give_wrong_shapes(tmp_path: Path, at: int, value: int, cut: bool) -> None:
    for file in tmp_path.glob("*"):
        file.unlink()
    _filled(tmp_path)
    (file,) = tmp_path.glob("*.npz")
    data = bytearray(file.read_bytes())
    if cut:
        del data[at % len(data) :]
    else:
        data[at % len(data)] = value
    file.write_bytes(data)
    for key in KEYS:
        row = FeatureCache(tmp_path).get(key)
        assert row is None or (row.shape == (2,) and np.isfinite(row).all())


def test_hash_depends_on_weights_and_settings() -> None:
    weights = {"a": np.ones(3, np.float32)}
    hashes = {
        hash_arrays(weights, {"size": 64}),
        hash_arrays(weights, {"size": 96}),
        hash_arrays({"a": np.zeros(3, np.float32)}, {"size": 64}),
        hash_arrays({"b": np.ones(3, np.float32)}, {"size": 64}),
    }
    assert len(hashes) == 4

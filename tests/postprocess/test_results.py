from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppcls.postprocess.results import Embedding, rank


@given(st.lists(st.floats(-1, 1, width=32), min_size=1))
def test_embedding_as_tree_keeps_all_bits(numbers: list[float]) -> None:
    vector = np.array(numbers, np.float32)
    text = json.dumps(Embedding(vector).as_tree())
    np.testing.assert_array_equal(np.array(json.loads(text)["embedding"], np.float32), vector)


def test_embedding_str_shows_its_first_values() -> None:
    assert str(Embedding(np.array([0.6, -0.8], np.float32))) == "2 values: 0.6000 -0.8000"
    assert str(Embedding(np.full(9, 1 / 3, np.float32))) == "9 values: 0.3333 0.3333 0.3333 0.3333 …"


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.7]), min_size=1, max_size=30), st.data())
def test_rank_keeps_the_order_of_a_stable_sort(scores: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    array = np.array(scores, np.float32)
    np.testing.assert_array_equal(rank(array, count), np.argsort(-array, kind="stable")[:count])

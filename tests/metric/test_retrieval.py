"""Retrieval metrics, compared with scikit-learn and plain sorting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from ppcls.metric.build import Rows, build_metrics
from ppcls.metric.functional import retrieval
from ppcls.metric.functional.retrieval import Search
from ppcls.metric.retrieval import Precisionk, Recallk, mAP


@st.composite
def embeddings(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, size = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    coarse = draw(st.booleans())  # coarse values have ties
    features = rng.integers(1, 3, (rows, size)) if coarse else rng.standard_normal((rows, size))
    return features.astype("float32"), rng.integers(0, draw(st.integers(1, 12)), rows).astype("float64")


@settings(deadline=None, max_examples=60)
@given(embeddings(), st.sampled_from([2, 256]), st.booleans(), st.data())
def test_retrieval_metrics_equal_plain_loop(sample, block, two_sets, data):
    features, labels = sample
    queries = data.draw(st.integers(0, len(labels))) if two_sets else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_BLOCK", block)
        recalls = retrieval.recalls_at(features, labels, (1, 3), queries)
        precision = retrieval.mean_average_precision(features, labels, queries)
    unit = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype("float32")
    asking, gallery = (unit, unit) if queries is None else (unit[:queries], unit[queries:])
    blocks = [asking[i : i + block] @ gallery.T for i in range(0, len(asking), block)]
    known = labels if queries is None else labels[queries:]
    hits, precisions = {1: [], 3: []}, []
    for i, row in enumerate(np.concatenate(blocks) if blocks else []):
        others = np.arange(len(known)) != i if queries is None else np.full(len(known), True)
        same = known[others] == labels[i]
        if not same.any():
            continue
        scores = row[others]
        precisions.append(average_precision_score(same, scores))
        order = sorted(range(len(scores)), key=lambda j: (-scores[j], same[j]))  # ties: others first
        for k, found in hits.items():
            found.append(any(same[j] for j in order[:k]))
    if not precisions:
        assert all(math.isnan(each) for each in (*recalls, precision))
        return
    assert recalls == [np.mean(hits[1]), np.mean(hits[3])]
    assert precision == pytest.approx(np.mean(precisions))


def test_retrieval_of_perfect_and_useless_embeddings():
    labels = np.array([0.0, 0.0, 1.0, 1.0])
    perfect = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], "float32")
    metrics = build_metrics((Recallk(topk=1), mAP()))
    assert metrics.names == ("recall1", "mAP")
    assert metrics.gathered == ("features",)
    assert metrics.width == 0
    rows = {"features": Rows(perfect, labels[:, None])}
    assert metrics.values(np.zeros(0), 4, rows) == {"recall1": 1.0, "mAP": 1.0}
    rows = {"features": Rows(perfect[[0, 2, 1, 3]], labels[:, None])}
    assert metrics.values(np.zeros(0), 4, rows)["recall1"] == 0.0


def test_retrieval_query_finds_itself_in_gallery():
    features = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], "float32")
    labels = np.array([0.0, 1.0, 0.0, 0.0])
    rows = {"features": Rows(features, labels[:, None], queries=2)}
    found = build_metrics((Recallk(topk=1), mAP())).values(np.zeros(0), 4, rows)
    assert found == {"recall1": 1.0, "mAP": 1.0}, "nothing in the gallery is of the second identity"


def test_retrieval_ignores_images_of_the_query_from_its_own_camera():
    # The query's twin from camera 1 is the nearest; from camera 2 its identity comes after another one.
    features = np.array([[1, 0], [1, 0], [0.8, 0.6], [0.9, 0.436]], "float32")
    labels, cameras = np.array([[0.0], [0.0], [0.0], [1.0]]), np.array([1, 1, 2, 1])
    metrics = build_metrics((Recallk(topk=(1, 2)), mAP()))
    rows = Rows(features, labels, queries=1)
    assert metrics.values(np.zeros(0), 4, {"features": rows})["recall1"] == 1.0
    filtered = metrics.values(np.zeros(0), 4, {"features": rows._replace(cameras=cameras)})
    assert filtered == {"recall1": 0.0, "recall2": 1.0, "mAP": 0.5}
    alone = rows._replace(cameras=np.array([1, 1, 1, 2]))
    assert math.isnan(metrics.values(np.zeros(0), 4, {"features": alone})["mAP"]), "no image is left to find"


def test_precision_counts_the_nearest_images():
    features = np.array([[1, 0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0, 1]], "float32")
    labels = np.array([[0.0], [0.0], [1.0], [0.0], [1.0]])
    rows = Rows(features, labels, queries=1)
    found = build_metrics((Precisionk(topk=(1, 2, 3, 8)),)).values(np.zeros(0), 5, {"features": rows})
    assert found == {"precision1": 1.0, "precision2": 0.5, "precision3": 2 / 3, "precision8": 2 / 8}


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (Search(), 1.0),  # its angle is smaller
        (Search(normalize=False), 0.0),  # the other image is longer
        (Search(normalize=False, binarize="sign"), 0.0),  # equal bits: others win ties
        (Search(normalize=False, binarize="round"), 1.0),
        (Search(output="backbone"), 1.0),
    ],
)
def test_search_compares_embeddings_as_configured(search, expected):
    features = np.array([[0.9, 0.2], [0.8, 0.4], [0.9, 0.8]], "float32")
    metrics = build_metrics((Recallk(topk=1),), search=search)
    assert metrics.gathered == (search.output,)
    rows = Rows(features, np.array([[0.0], [0.0], [1.0]]), queries=1)
    assert metrics.values(np.zeros(0), 3, {search.output: rows})["recall1"] == expected

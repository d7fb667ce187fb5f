"""Re-ranking, compared with a plain loop over the formulas of the paper."""

from __future__ import annotations

import numpy as np
import pytest

from ppcls.metric.build import Rows, build_metrics
from ppcls.metric.functional import reranking, retrieval
from ppcls.metric.functional.retrieval import Search
from ppcls.metric.retrieval import Recallk, mAP
from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import load_config


def unit_vectors(count: int, size: int = 8, seed: int = 3) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("float32")


def plain_similarities(unit: np.ndarray, queries: int) -> np.ndarray:
    """Returns 1 - d*, with d* of the paper's equations 1 to 12, image by image."""
    distances = 2 - 2 * unit.astype(float) @ unit.T.astype(float)
    distances /= distances.max(axis=1, keepdims=True)
    ranks = np.argsort(distances, axis=1)
    count = len(unit)

    def reciprocal(image: int, k: int) -> set[int]:
        return {other for other in ranks[image, : k + 1] if image in ranks[other, : k + 1]}

    weights = np.zeros((count, count))
    for image in range(count):
        near = reciprocal(image, 20)
        expanded = set(near)
        for other in near:
            theirs = reciprocal(other, 10)
            if len(near & theirs) > 2 / 3 * len(theirs):
                expanded |= theirs
        members = sorted(expanded)
        weights[image, members] = np.exp(-distances[image, members])
    weights /= weights.sum(axis=1, keepdims=True)
    weights = np.stack([weights[ranks[image, :6]].mean(axis=0) for image in range(count)])
    result = np.zeros((queries, count - queries))
    for query in range(queries):
        for image in range(queries, count):
            smaller = np.minimum(weights[query], weights[image]).sum()
            larger = np.maximum(weights[query], weights[image]).sum()
            result[query, image - queries] = 1 - 0.7 * (1 - smaller / larger) - 0.3 * distances[query, image]
    return result


@pytest.mark.parametrize(("count", "queries", "block"), [(60, 7, 256), (60, 20, 16), (15, 3, 4)])
def test_reranked_similarities_equal_the_formulas(
    count: int, queries: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reranking, "_BLOCK", block)
    unit = unit_vectors(count)
    found = reranking.reranked_similarities(unit, queries)
    np.testing.assert_allclose(found, plain_similarities(unit, queries), atol=1e-5)


def test_reranking_finds_images_along_a_chain_of_neighbors() -> None:
    angles = np.concatenate([np.linspace(0, 2.4, 40), np.linspace(3.3, 5.7, 40)])  # two arcs, a gap between
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")
    labels = np.repeat([0.0, 1.0], 40)
    plain = retrieval.mean_average_precision(features, labels)
    rows = Rows(features, labels[:, None])
    metrics = build_metrics((mAP(), Recallk(topk=1)), search=Search(rerank=True))
    values = metrics.values(np.zeros(0), 80, {"features": rows})
    assert values["mAP"] > plain + 0.01
    assert values["recall1"] == 1.0


def test_re_ranking_without_retrieval_has_no_effect() -> None:
    config = load_config("ResNet50", ["Global.re_ranking=True"])
    expected = "warning: Global.re_ranking has no effect without Global.eval_mode: retrieval"
    assert expected in config_warnings(config)

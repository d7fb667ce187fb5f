"""Losses of pairs and triplets of embeddings, compared with plain loops in float64."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.loss.build import build_criterion
from ppcls.loss.embedding import SupConLoss, TripletLoss, TripletLossV2

quick = settings(deadline=None, max_examples=30)


def triplets(features, label, margin, normalize):
    z = features.astype("float64")
    if normalize:
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
    losses = []
    for i, one in enumerate(z):
        distance = [math.dist(one, other) for other in z]
        positives = [d for d, k in zip(distance, label, strict=True) if k == label[i]]
        negatives = [d for d, k in zip(distance, label, strict=True) if k != label[i]]
        losses.append(max(0.0, margin + max(positives) - min(negatives)) if negatives else 0.0)
    return np.mean(losses)


@quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from([0.5, 2.0]), st.booleans())
def test_hard_triplets_equal_plain_loop(seed, rows, margin, normalize):
    rng = np.random.default_rng(seed)
    features, label = rng.standard_normal((rows, 3)).astype("float32"), rng.integers(5, 8, rows)
    spec = TripletLossV2(margin=margin) if normalize else TripletLoss(margin=margin)
    tensor = paddle.to_tensor(features, stop_gradient=False)
    loss = build_criterion((spec,))({"features": tensor}, paddle.to_tensor(label))
    assert loss.dtype == paddle.float32
    assert loss.shape == []
    assert float(loss) == pytest.approx(triplets(features, label, margin, normalize), rel=1e-3, abs=2e-3)
    loss.backward()
    assert np.isfinite(tensor.grad.numpy()).all()


def contrast(features, label, temperature):
    z = features / np.linalg.norm(features, axis=1, keepdims=True)
    costs = []
    for i in range(len(z)):
        others = [k for k in range(len(z)) if k != i]
        total = sum(math.exp(z[i] @ z[k] / temperature) for k in others)
        logs = [z[i] @ z[k] / temperature - math.log(total) for k in others if label[k] == label[i]]
        costs += [-np.mean(logs)] if logs else []
    return np.mean(costs)


def test_supervised_contrast_equals_plain_loop_and_has_a_finite_gradient():
    rng = np.random.default_rng(0)
    features, label = rng.standard_normal((7, 4)).astype("float32"), np.array([1, 1, 2, 3, 2, 1, 9])
    tensor = paddle.to_tensor(features, stop_gradient=False)
    spec = SupConLoss(temperature=0.2, base_temperature=0.1)
    loss = build_criterion((spec,))({"features": tensor}, paddle.to_tensor(label))
    assert float(loss) == pytest.approx(2 * contrast(features.astype("float64"), label, 0.2), rel=1e-4)
    loss.backward()
    assert np.isfinite(tensor.grad.numpy()).all()
    assert float(build_criterion((spec,))({"features": tensor}, paddle.arange(7))) == 0

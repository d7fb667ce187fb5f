"""The logits that minimize losses with class weights, which must be those of the image's own class."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from ppcls.loss.functional.classification import (
    binary_cross_entropy,
    cross_entropy,
    sigmoid_focal_loss,
    softmax_focal_loss,
)

CLASSES = 3
WEIGHTS = st.lists(st.floats(0.02, 50), min_size=CLASSES, max_size=CLASSES)
SMOOTHINGS = st.floats(0.01, 0.4)
GAMMAS = st.sampled_from([0.0, 0.5, 2.0])
FREQUENCIES = st.lists(st.floats(0.01, 1), min_size=CLASSES, max_size=CLASSES)
OWN = np.eye(CLASSES)


def optimum(loss: Callable[..., paddle.Tensor], labels: np.ndarray) -> np.ndarray:
    """Returns the logits that minimize a loss for each row of labels, one row at a time."""
    rows = [_row_optimum(loss, paddle.to_tensor(labels[i : i + 1])) for i in range(len(labels))]
    return np.stack(rows)


def _row_optimum(loss: Callable[..., paddle.Tensor], label: paddle.Tensor) -> np.ndarray:
    def value_and_gradient(logits: np.ndarray) -> tuple[float, np.ndarray]:
        z = paddle.to_tensor(logits[None].astype("float32"), stop_gradient=False)
        value = loss(z, label)
        value.backward()
        return float(value), z.grad.numpy()[0].astype("float64")

    # Paddle's gradient of the binary cross-entropy is wrong at logits of exactly 0.
    start = np.full(CLASSES, 0.1)
    scale = value_and_gradient(start)[0]

    def scaled(logits: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(logits)
        return value / scale, gradient / scale

    return minimize(scaled, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-6}).x


def softmax(z: np.ndarray) -> np.ndarray:
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def smooth(target: np.ndarray, smoothing: float) -> np.ndarray:
    return (1 - smoothing) * target + smoothing / CLASSES


@settings(max_examples=8, deadline=None)
@given(weights=WEIGHTS, smoothing=SMOOTHINGS)
def test_optimal_probabilities_of_cross_entropy_are_the_smoothed_labels(weights, smoothing):
    loss = partial(cross_entropy, smoothing=smoothing, weights=paddle.to_tensor(weights, "float32"))
    for labels in (np.arange(CLASSES), OWN.astype("float32")):
        np.testing.assert_allclose(softmax(optimum(loss, labels)), smooth(OWN, smoothing), atol=0.02)


@settings(max_examples=8, deadline=None)
@given(weights=WEIGHTS, smoothing=SMOOTHINGS, gamma=GAMMAS)
def test_optimal_class_of_focal_loss_is_the_label(weights, smoothing, gamma):
    loss = partial(
        softmax_focal_loss, gamma=gamma, smoothing=smoothing, weights=paddle.to_tensor(weights, "float32")
    )
    assert optimum(loss, np.arange(CLASSES)).argmax(axis=1).tolist() == [*range(CLASSES)]


@settings(max_examples=8, deadline=None)
@given(weights=WEIGHTS, smoothing=SMOOTHINGS, labels=st.integers(0, 2**CLASSES - 1))
def test_optimal_scores_of_binary_cross_entropy_are_the_smoothed_labels(weights, smoothing, labels):
    several = np.array([[labels >> position & 1 for position in range(CLASSES)]], "float32")
    loss = partial(binary_cross_entropy, smoothing=smoothing, weights=paddle.to_tensor(weights, "float32"))
    np.testing.assert_allclose(sigmoid(optimum(loss, several)), smooth(several, smoothing), atol=0.02)


@settings(max_examples=8, deadline=None)
@given(weights=WEIGHTS, smoothing=SMOOTHINGS, alpha=st.none() | st.floats(0.02, 0.98), gamma=GAMMAS)
def test_optimal_scores_of_binary_focal_loss_agree_with_the_labels(weights, smoothing, alpha, gamma):
    loss = partial(
        sigmoid_focal_loss,
        gamma=gamma,
        alpha=alpha,
        smoothing=smoothing,
        weights=paddle.to_tensor(weights, "float32"),
    )
    positive = sigmoid(optimum(loss, OWN.astype("float32"))) > 0.5
    assert positive.tolist() == OWN.astype(bool).tolist()


@settings(max_examples=8, deadline=None)
@given(weights=st.none() | WEIGHTS, smoothing=SMOOTHINGS, frequencies=FREQUENCIES)
def test_optimal_class_of_adjusted_logits_is_the_label(weights, smoothing, frequencies):
    loss = partial(
        cross_entropy,
        smoothing=smoothing,
        weights=None if weights is None else paddle.to_tensor(weights, "float32"),
        offsets=paddle.to_tensor(np.log(np.array(frequencies) / sum(frequencies)), "float32"),
    )
    assert optimum(loss, np.arange(CLASSES)).argmax(axis=1).tolist() == [*range(CLASSES)]


def shares_of(common: float) -> np.ndarray:
    """Returns the labels of an image that Mixup or CutMix mixed from classes 0 and 1, [1, CLASSES]."""
    return np.array([[common, 1 - common, 0.0]], "float32")


SHARES = st.floats(0, 1, width=32).map(shares_of)
IMAGE_LOSSES: list[Callable[..., paddle.Tensor]] = [cross_entropy, partial(softmax_focal_loss, gamma=0.0)]


@settings(max_examples=8, deadline=None)
@given(weights=WEIGHTS, smoothing=SMOOTHINGS, shares=SHARES, loss=st.sampled_from(IMAGE_LOSSES))
def test_optimal_probabilities_of_mixed_images_are_their_shares(weights, smoothing, shares, loss):
    weighted = partial(loss, smoothing=smoothing, weights=paddle.to_tensor(weights, "float32"))
    np.testing.assert_allclose(softmax(optimum(weighted, shares)), smooth(shares, smoothing), atol=0.02)


@settings(max_examples=8, deadline=None)
@given(weights=WEIGHTS, smoothing=SMOOTHINGS, shares=SHARES)
def test_optimal_binary_scores_of_mixed_images_are_their_shares(weights, smoothing, shares):
    loss = partial(binary_cross_entropy, smoothing=smoothing, weights=paddle.to_tensor(weights, "float32"))
    np.testing.assert_allclose(sigmoid(optimum(loss, shares)), smooth(shares, smoothing), atol=0.02)


@settings(max_examples=8, deadline=None)
@given(
    weights=WEIGHTS,
    smoothing=SMOOTHINGS,
    shares=st.sampled_from([0.0, 0.03, 0.3, 0.7, 0.97, 1.0]).map(shares_of),
    gamma=GAMMAS,
    alpha=st.none() | st.floats(0.02, 0.98),
)
def test_optimal_class_of_focal_losses_of_mixed_images_has_the_largest_share(
    weights, smoothing, shares, gamma, alpha
):
    keys = {"gamma": gamma, "smoothing": smoothing, "weights": paddle.to_tensor(weights, "float32")}
    for loss in (softmax_focal_loss, partial(sigmoid_focal_loss, alpha=alpha)):
        assert optimum(partial(loss, **keys), shares).argmax() == shares.argmax()


@settings(max_examples=8, deadline=None)
@given(
    weights=st.none() | WEIGHTS,
    smoothing=st.just(0.0) | SMOOTHINGS,
    frequencies=FREQUENCIES,
    common=st.sampled_from([0.03, 0.3, 0.7, 0.97]),
)
def test_optimal_class_of_adjusted_logits_has_the_largest_share(weights, smoothing, frequencies, common):
    loss = partial(
        cross_entropy,
        smoothing=smoothing,
        weights=None if weights is None else paddle.to_tensor(weights, "float32"),
        offsets=paddle.to_tensor(np.log(np.array(frequencies) / sum(frequencies)), "float32"),
    )
    assert optimum(loss, shares_of(common)).argmax() == shares_of(common).argmax()


def test_mixed_images_have_the_mean_weight_of_their_classes():
    logits = paddle.to_tensor([[0.3, -1.0, 2.0]], "float32")
    for loss in (cross_entropy, partial(softmax_focal_loss, gamma=2.0)):
        weighted = float(
            loss(logits, paddle.to_tensor(shares_of(0.25)), weights=paddle.to_tensor([0.5, 3.0, 20.0]))
        )
        plain = float(loss(logits, paddle.to_tensor(shares_of(0.25))))
        assert weighted == pytest.approx((0.25 * 0.5 + 0.75 * 3.0) * plain, rel=1e-5)

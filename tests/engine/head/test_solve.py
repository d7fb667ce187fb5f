"""The linear head gives the accuracy of scikit-learn's own pipeline, and handles odd labels."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from ppcls.engine.head.solve import HeadSamples, fit_head, predict_out_of_fold, split_folds, to_probabilities


def _samples(features: np.ndarray, labels: np.ndarray, classes: int, views: int = 1) -> HeadSamples:
    count = len(labels)
    rng = np.random.default_rng(1)
    stacked = [features + 0.05 * rng.normal(size=features.shape) * (view > 0) for view in range(views)]
    return HeadSamples(
        np.concatenate(stacked).astype(np.float32),
        np.tile(np.arange(count), views),
        np.repeat(np.arange(views) == 0, count),
        labels,
        classes,
    )


def _blobs(count: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = 2 * np.random.default_rng(7).normal(size=(classes, 12))
    return (centres[labels] + rng.normal(size=(count, 12))).astype(np.float32), labels.astype(np.int64)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    views=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_any_labels_give_finite_weights_and_classes_without_images_are_not_predicted(
    labels: list[int], views: int
) -> None:
    array = np.array(labels, np.int64)
    features = np.random.default_rng(0).normal(size=(len(labels), 6)).astype(np.float32)
    samples = _samples(features, array, 5, views)
    fitted = fit_head(samples, 3, 0)
    logits = fitted.model.logits(features)
    assert logits.shape == (len(labels), 5)
    assert np.isfinite(logits).all()
    assert set(logits.argmax(axis=1).tolist()) <= set(labels)
    for train, test in split_folds(samples, 3, 0):
        assert not (train & test).any()


@pytest.mark.parametrize("most", [None, 20])
def test_each_image_is_held_out_once_and_folds_have_equal_shares_of_the_classes(most: int | None) -> None:
    labels = np.array([0] * 19 + [1] * 7 + [2], np.int64)
    samples = _samples(np.zeros((27, 2)), labels, 3, views=2)
    folds = list(split_folds(samples, 4, 0, most))
    assert len(folds) == 4
    held_out = sum(test.astype(int) for _, test in folds)
    assert held_out.max() == 1
    assert held_out.sum() == (most or 27)
    assert [(train | test).tolist() for train, test in folds] == [(held_out == 1).tolist()] * 4
    counts = np.array([np.bincount(labels[test], minlength=3) for _, test in folds])
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1
    orders = [[test.tolist() for _, test in split_folds(samples, 4, seed, most)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_the_fit_of_a_head_does_not_import_scikit_learn() -> None:
    """The import takes about a second, at the end of each run."""
    code = """
import sys
import numpy as np
from ppcls.engine.head.solve import HeadSamples, predict_out_of_fold
labels = np.arange(12) % 2
features = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
predict_out_of_fold(HeadSamples(features, np.arange(12), np.ones(12, bool), labels, 2), 3, 0, 1.0)
assert "sklearn" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("classes", [2, 5])
def test_regularization_is_chosen_and_unseen_images_are_predicted(classes: int) -> None:
    features, labels = _blobs(150, classes)
    fitted = fit_head(_samples(features, labels, classes, views=2), 5, 0)
    unseen, expected = _blobs(150, classes, seed=1)
    assert (fitted.model.logits(unseen).argmax(axis=1) == expected).mean() > 0.9
    assert fitted.losses[fitted.strength] == min(fitted.losses.values())


@pytest.mark.parametrize("calls", [0, 1, 5, 20, 60])
def test_a_fit_without_enough_time_ends_early_with_a_usable_head(calls: int) -> None:
    features, labels = _blobs(150, 3)
    left = iter(range(calls, -1000, -1))
    fitted = fit_head(_samples(features, labels, 3), 5, 0, left=lambda: next(left))
    assert not fitted.complete
    assert next(left) > -40  # it ends soon
    assert np.isfinite(fitted.model.weight).all()
    assert (fitted.model.logits(features).argmax(axis=1) == labels).mean() > 0.8


def test_several_labels_are_fitted_one_by_one() -> None:
    features, labels = _blobs(90, 3)
    several = np.eye(3, dtype=np.float32)[labels]
    several[:, 2] = 1  # all images have this label
    fitted = fit_head(_samples(features, several, 3), 3, 0)
    assert ((fitted.model.logits(features) > 0) == several).mean() > 0.95


def test_out_of_fold_predictions_do_not_see_their_own_label() -> None:
    features = np.random.default_rng(0).normal(size=(60, 200)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, 2, 60)
    probabilities = predict_out_of_fold(_samples(features, labels, 2), 5, 0, 1.0)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert (
        probabilities.argmax(axis=1) == labels
    ).mean() < 0.75  # labels are noise; a seen one would be known


def test_the_minimum_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    features = np.linalg.qr(rng.normal(size=(200, 8)) - 0.1)[0]
    features -= features.mean(axis=0)
    features = np.linalg.qr(features)[0].astype(np.float32)  # all components have one variance
    labels = (features @ rng.normal(size=(8, 4)) + 0.05 * rng.normal(size=(200, 4))).argmax(axis=1)
    fitted = fit_head(_samples(features, labels, 4), 5, 0)
    scaled = features / features.std(axis=0).mean()
    expected = LogisticRegression(C=fitted.strength, max_iter=1000).fit(scaled, labels).predict_proba(scaled)
    found = to_probabilities(fitted.model.logits(features), several=False)
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_predictions_do_not_depend_on_other_held_out_images() -> None:
    """Components of all images would, and cross-validation would then choose too little regularization."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = (np.eye(3, 200)[labels] * 3 + rng.standard_normal((60, 200))).astype(np.float32)
    samples = HeadSamples(features, np.arange(60), np.ones(60, np.bool_), labels, 3)
    _, held_out = next(iter(split_folds(samples, 5, 0)))
    changed, *others = np.flatnonzero(held_out)
    other = features.copy()
    other[changed] *= 30
    before = predict_out_of_fold(samples, 5, 0, strength=1.0)
    after = predict_out_of_fold(replace(samples, features=other), 5, 0, strength=1.0)
    np.testing.assert_allclose(after[others], before[others], rtol=1e-4)
    assert not np.allclose(after[~held_out], before[~held_out], rtol=1e-4)

"""Fits logistic regression on features, with regularization that cross-validation chooses. Uses no Paddle.

Decisions:

- Features are rotated to their principal components, in each fold to those of its training images. Components
  without variance are dropped, so 325 images have at most 325 components, not 1,280. The components of all
  images know the held-out ones, and cross-validation then chose a regularization that was too weak: for 20,
  50, 100 and 300 digits, the loss of other digits was 1.19, 0.82, 0.58 and 0.31, and is 1.07, 0.75, 0.53 and
  0.28, as low as with the best strength in hindsight but for 4 % at most.
- Each component is divided by the root of its standard deviation, so the L2 regularization is weaker for
  components with little variance. They distinguish images that differ from the pretraining data. For 6, 32
  and 116 digits per class, the loss of other digits falls from 0.760, 0.365 and 0.155 to 0.708, 0.278 and
  0.119, at the best strength each. Division by the full standard deviation is worse: 0.794, 0.613, 0.563.
- L-BFGS works on variables that are scaled by the curvature of the loss along each component. It then needs
  about a tenth of the iterations, above all with little regularization.
- scikit-learn's LogisticRegression minimizes the same function with the same L-BFGS of SciPy, but accepts no
  scale of the variables. It took most of the time of a run with a head.
- Features and products are float32, sums and variables float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_P = ParamSpec("_P")
_R = TypeVar("_R")

STRENGTHS = tuple(10.0**exponent for exponent in range(-5, 3))  # inverse regularization, C in scikit-learn
_DEFAULT_STRENGTH = 1e-2  # without cross-validation, because no class has two images
_VALIDATED = 2_000  # largest number of images on which the strength is chosen
_ITERATIONS = 200  # largest number of iterations of L-BFGS for one strength
_SEARCH = 2.0  # duration of the search in a fold, at least, divided by that of its rotation
_FIT_SHARE = 0.3  # of the time, for the fit with the chosen strength
_GRADIENT = 1e-5  # largest derivative of the mean loss by a scaled variable at the end
_DECREASE = 1e-9  # relative decrease of the loss in one iteration at which L-BFGS ends
_LEAST_VARIANCE = 1e-6  # of a component, relative to the largest one; smaller ones are noise of float32
_SMALLEST = 1e-7  # smallest probability in the log loss
_ABSENT = 20.0  # logits below the smallest one for a class without training images


@dataclass(frozen=True)
class HeadSamples:
    """Features of images, with one or several views of each image.

    Attributes:
        features: Features of each view, [M, D] float32.
        images: Number of the image of each view, 0..N - 1, [M] int64.
        plain: Whether the view has no random transforms, [M] bool. Each image has at most one such view.
        labels: Labels of the images: [N] int64, 0..classes - 1; or [N, classes], 0 or 1 for each class.
        classes: Number of classes.
    """

    features: Floats
    images: Ints
    plain: NDArray[np.bool_]
    labels: NDArray[Any]
    classes: int

    def select(self, chosen: NDArray[np.bool_], *, plain: bool = False) -> HeadSamples:
        """Returns the views of some images.

        Args:
            chosen: Whether to select an image, [N].
            plain: Whether to select only views without random transforms.
        """
        rows = chosen[self.images] & (self.plain if plain else True)
        return HeadSamples(
            self.features[rows], self.images[rows], self.plain[rows], self.labels, self.classes
        )

    @property
    def targets(self) -> NDArray[Any]:
        """Labels of the views, [M] or [M, classes]."""
        return self.labels[self.images]


@dataclass(frozen=True)
class LinearModel:
    """A linear layer.

    Attributes:
        weight: [D, classes] float32.
        bias: [classes] float32.
    """

    weight: Floats
    bias: Floats

    def logits(self, features: Floats) -> Floats:
        """Returns the logits of features [M, D], [M, classes]."""
        return features @ self.weight + self.bias


@dataclass(frozen=True)
class HeadFit:
    """A fitted head.

    Attributes:
        model: The linear layer.
        strength: Inverse of the strength of the L2 regularization, C in scikit-learn.
        losses: Mean cross-validated loss by ``strength``; empty if there was no cross-validation.
        complete: Whether the time sufficed for the whole fit.
    """

    model: LinearModel
    strength: float
    losses: dict[float, float]
    complete: bool = True


def on_one_core(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a function that computes matrix products with one thread.

    The products are so small that several threads spend more time on waiting for each other. On cores that
    other programs use too, they are 40 times slower.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # The limit applies to libraries that are loaded, and SciPy has its own library for matrices.
        import scipy.optimize  # noqa: F401

        with threadpool_limits(1):
            return function(*args, **kwargs)

    return run


@on_one_core
def fit_head(
    samples: HeadSamples,
    folds: int,
    seed: int,
    check: Callable[[], None] = lambda: None,
    left: Callable[[], float] = lambda: math.inf,
) -> HeadFit:
    """Chooses the strength of the regularization by cross-validation, and fits a head on all samples.

    Args:
        samples: Features and labels.
        folds: Number of parts of the cross-validation; fewer are used if all classes have fewer images.
        seed: Seed of the folds.
        check: Function that is called between fits; it may raise an exception to stop.
        left: Function that returns the number of seconds until the fit must end. The cross-validation then
            compares fewer strengths, and L-BFGS ends before the minimum.
    """
    kept = _FIT_SHARE * left()

    def is_late() -> bool:
        return left() < 0

    strength, losses = _choose_strength(samples, folds, seed, check, lambda: left() - kept)
    complete = left() >= kept
    rotated, rotation = _rotate(samples)
    check()
    for model in _fit_path(rotated, _path_to(strength), is_late):  # noqa: B007
        if is_late():
            break
    check()
    return HeadFit(rotation.restore(model), strength, losses, complete and not is_late())


@on_one_core
def predict_out_of_fold(
    samples: HeadSamples,
    folds: int,
    seed: int,
    strength: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> Floats:
    """Returns the probabilities of each image by a head that was not fitted on this image, [N, classes].

    Images without a view get NaN. See `fit_head` for the arguments.

    Args:
        strength: Inverse strength of the regularization; None to choose it by cross-validation.
    """
    if strength is None:
        strength, _ = _choose_strength(samples, folds, seed, check)
    probabilities = np.full((len(samples.labels), samples.classes), np.nan, np.float32)
    for train, test in split_folds(samples, folds, seed):
        rotated, rotation = _rotate(samples.select(train))
        check()
        *_, model = _fit_path(rotated, _path_to(strength))
        held_out = samples.select(test, plain=True)
        probabilities[held_out.images] = to_probabilities(
            model.logits(rotation.apply(held_out.features)), several=samples.labels.ndim == 2
        )
        check()
    return probabilities


def _choose_strength(
    samples: HeadSamples,
    folds: int,
    seed: int,
    check: Callable[[], None],
    left: Callable[[], float] = lambda: math.inf,
) -> tuple[float, dict[float, float]]:
    """Returns the strength of the regularization with the lowest cross-validated loss, and the losses.

    The views of an image are always in the same fold. Their weights add up to 1, so an image with more views
    does not count more.

    Args:
        samples: Features and labels. See `fit_head` for the other arguments.
        left: Function that returns the number of seconds until the search must end, with the strengths that
            all folds have finished.
    """

    def is_late() -> bool:
        return left() < 0

    losses: dict[float, float] = {}
    parts = list(split_folds(samples, folds, seed, _VALIDATED))
    held_out = []
    rotated: list[HeadSamples] = []
    for train, test in parts:
        before = left()
        chosen, rotation = _rotate(samples.select(train))
        check()
        seconds = before - left() if math.isfinite(before) else 0.0
        if left() < _SEARCH * seconds * (len(parts) - len(rotated) - 1):
            return _DEFAULT_STRENGTH, {}
        rotated.append(chosen)
        others = samples.select(test, plain=True)
        held_out.append(replace(others, features=rotation.apply(others.features)))
    # All folds take a step of the path before the next one, so that the path can end early. The weakest
    # regularization needs most of the time.
    paths = [_fit_path(each, STRENGTHS, is_late) for each in rotated]
    for strength in STRENGTHS if parts else ():
        fold_losses = []
        for path, others in zip(paths, held_out, strict=True):
            fold_losses.append(mean_loss(next(path).logits(others.features), others.targets))
            check()
            if is_late():
                return min(losses, key=lambda each: losses[each]) if losses else _DEFAULT_STRENGTH, losses
        losses[strength] = float(np.mean(fold_losses))
        if losses[strength] > min(losses.values()):
            break
    return min(losses, key=lambda each: losses[each]) if losses else _DEFAULT_STRENGTH, losses


def split_folds(
    samples: HeadSamples, folds: int, seed: int, most: int | None = None
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Yields the images to fit on and the held-out images of each fold, [N] bool each.

    Yields nothing if no class has two images.

    Args:
        samples: Features and labels. Images without a plain view are in no fold.
        folds: Number of folds.
        seed: Seed of the folds.
        most: Number of images to use at most; None for all images.
    """
    images = np.unique(samples.images[samples.plain])
    rng = np.random.default_rng(seed)
    if most is not None and len(images) > most:
        images = np.sort(rng.choice(images, most, replace=False))
    labels = samples.labels[images]
    # In random order, images are dealt to the folds in turn. To import scikit-learn's folds takes a second.
    order = rng.permutation(len(images))
    count = min(folds, len(images))
    if labels.ndim == 1:  # class by class, so that each fold has its share of each class
        order = order[np.argsort(labels[order], kind="stable")]
        count = min(folds, int(np.bincount(labels).max(initial=0)))
    if count < 2:
        return
    fold_of = np.full(len(samples.labels), -1)
    fold_of[images[order]] = np.arange(len(images)) % count
    for fold in range(count):
        yield (fold_of >= 0) & (fold_of != fold), fold_of == fold


def to_probabilities(logits: Floats, *, several: bool) -> Floats:
    """Returns the probabilities of logits, [M, classes].

    Args:
        several: Whether images have several labels, whose probabilities are independent.
    """
    from scipy.special import expit, softmax

    result: Floats = expit(logits) if several else softmax(logits, axis=1)
    return result


def mean_loss(logits: Floats, labels: NDArray[Any]) -> float:
    """Returns the mean cross-entropy in nats.

    Args:
        logits: [M, classes].
        labels: [M] int64; or [M, classes], 0 or 1 for each class.
    """
    several = labels.ndim == 2
    chances = to_probabilities(logits, several=several).clip(_SMALLEST, 1 - _SMALLEST)
    if several:
        losses = -(labels * np.log(chances) + (1 - labels) * np.log1p(-chances)).mean(axis=1)
    else:
        losses = -np.log(chances[np.arange(len(labels)), labels])
    return float(losses.mean())


def _path_to(strength: float) -> tuple[float, ...]:
    """Returns the strengths of a path that ends at a strength, from the strongest regularization.

    The result is then that of the cross-validation: with little regularization, L-BFGS ends before the
    minimum, and where depends on its start.
    """
    return (*(each for each in STRENGTHS if each < strength), strength)


@dataclass(frozen=True)
class _Rotation:
    """Maps features to their principal components.

    Attributes:
        mean: Mean of the features, [D] float32.
        components: Orthogonal directions, divided by the root of the standard deviation of the features
            along them, [D, R] float32.
    """

    mean: Floats
    components: Floats

    def apply(self, features: Floats) -> Floats:
        """Returns the rotated features, [M, R]."""
        rotated: Floats = ((features - self.mean) @ self.components).astype(np.float32, copy=False)
        return rotated

    def restore(self, model: LinearModel) -> LinearModel:
        """Returns the linear layer for features that are not rotated."""
        weight = self.components @ model.weight
        return LinearModel(weight, model.bias - self.mean @ weight)


def _rotate(samples: HeadSamples) -> tuple[HeadSamples, _Rotation]:
    """Returns the samples with rotated features, [M, R] with R <= min(M, D), and the rotation.

    The features are also divided by the root of their mean variance, so that one list of strengths fits all
    models.
    """
    weights = _view_weights(samples)
    mean = weights @ samples.features / weights.sum()
    centred = samples.features - mean
    scale = float(np.sqrt(np.einsum("m,md,md->", weights, centred, centred) / (weights.sum() * len(mean))))
    count, width = centred.shape
    if count >= width:
        values, vectors = np.linalg.eigh(centred.T @ centred)
    else:  # the same components, from the smaller matrix
        exact = centred.astype(np.float64)
        values, vectors = np.linalg.eigh(exact @ exact.T)
    kept = np.flatnonzero(values > _LEAST_VARIANCE * max(float(values[-1]), 1e-30))[::-1]
    components = vectors[:, kept]
    if count < width:
        components = exact.T @ components / np.sqrt(values[kept])
    variances = values[kept] / (values[kept].mean() if len(kept) else 1.0)
    components = (components / ((scale or 1.0) * variances**0.25)).astype(np.float32)
    return replace(samples, features=centred @ components), _Rotation(mean, components)


def _view_weights(samples: HeadSamples) -> Floats:
    """Returns the weight of each view, [M], 1 divided by the number of views of its image."""
    return (1.0 / np.bincount(samples.images)[samples.images]).astype(np.float32)


def _fit_path(
    samples: HeadSamples, strengths: tuple[float, ...], is_late: Callable[[], bool] = lambda: False
) -> Iterator[LinearModel]:
    """Yields the linear layer for each strength of the regularization, each from the previous solution.

    Args:
        samples: Rotated features and labels.
        strengths: Inverse strengths. C in scikit-learn has the same meaning, except that two classes have two
            logits here.
        is_late: Function that returns whether to end after the current iteration.
    """
    several = samples.labels.ndim == 2
    targets = samples.targets
    if several:
        counts = targets.sum(axis=0)
        learned = np.flatnonzero((counts > 0) & (counts < len(targets)))
        fixed = np.where(counts > 0, _ABSENT, -_ABSENT)
        hot = _Targets(targets[:, learned].astype(np.float32), several)
    else:
        learned = np.unique(targets)
        hot = _Targets((targets[:, None] == learned).astype(np.float32), several)
    weights = _view_weights(samples)
    features = samples.features
    theta = np.zeros((features.shape[1] + 1, len(learned)))
    for strength in strengths:
        if several or len(learned) > 1:
            theta = _minimize(features, hot, weights, theta, strength, is_late)
        weight = np.zeros((features.shape[1], samples.classes), np.float32)
        bias = np.zeros(samples.classes, np.float32)
        weight[:, learned] = theta[:-1]
        bias[learned] = theta[-1]
        absent = np.setdiff1d(np.arange(samples.classes), learned)
        if several:
            bias[absent] = fixed[absent]
        elif len(absent):
            logits = features @ weight[:, learned] + bias[learned]
            bias[absent] = float(logits.min()) - _ABSENT
        yield LinearModel(weight, bias)


@dataclass(frozen=True)
class _Targets:
    """Labels of views.

    Attributes:
        hot: 1 for the labels of each view, else 0, [M, K].
        several: Whether images have several labels.
    """

    hot: Floats
    several: bool


def _minimize(
    features: Floats,
    targets: _Targets,
    weights: Floats,
    start: NDArray[np.float64],
    strength: float,
    is_late: Callable[[], bool],
) -> NDArray[np.float64]:
    """Returns the weights and biases of a regression, [R + 1, K].

    The regularized function is the weighted mean of the cross-entropy plus half the squared length of the
    weights, without the biases, divided by the strength and the number of images.

    Args:
        features: Rotated features, [M, R].
        targets: Labels of each view.
        weights: Weight of each view, [M].
        start: Weights and biases at the start, [R + 1, K].
        strength: Inverse strength of the regularization.
        is_late: Function that returns whether to end after the current iteration.
    """
    from scipy.optimize import minimize

    hot = targets.hot
    several = targets.several
    shares = weights / weights.sum()
    penalty = np.append(np.full(features.shape[1], 1.0 / (strength * float(weights.sum()))), 0.0)[:, None]
    # The curvature at the start, with equal probabilities of all classes. The components are uncorrelated.
    curvature = 0.25 if several else (hot.shape[1] - 1) / hot.shape[1] ** 2
    variances = np.append(np.einsum("m,mr,mr->r", shares, features, features), 1.0)[:, None]
    steps = 1 / np.sqrt(curvature * variances + penalty)

    def loss(scaled: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = scaled.reshape(start.shape) * steps
        logits = features @ theta[:-1].astype(np.float32) + theta[-1].astype(np.float32)
        if several:
            losses = np.logaddexp(0, logits) - hot * logits
            errors = to_probabilities(logits, several=True) - hot
        else:
            largest = logits.max(axis=1, keepdims=True)
            chances = np.exp(logits - largest)
            sums = chances.sum(axis=1, keepdims=True)
            losses = np.log(sums) + largest - (hot * logits).sum(axis=1, keepdims=True)
            errors = chances / sums - hot
        errors *= shares[:, None]
        gradient = np.concatenate([features.T @ errors, errors.sum(axis=0, keepdims=True)])
        value = float(np.dot(shares, losses.sum(axis=1, dtype=np.float64)))
        value += 0.5 * float((penalty * theta**2).sum())
        return value, ((gradient + penalty * theta) * steps).ravel()

    def stop(_: NDArray[np.float64]) -> None:
        if is_late():
            raise StopIteration

    options = {"maxiter": _ITERATIONS, "gtol": _GRADIENT, "ftol": _DECREASE}
    minimum = minimize(
        loss, (start / steps).ravel(), jac=True, method="L-BFGS-B", callback=stop, options=options
    )
    result: NDArray[np.float64] = minimum.x.reshape(start.shape) * steps
    return result

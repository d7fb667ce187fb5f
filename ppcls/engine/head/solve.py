"""Fits logistic regression on features, with regularization that cross-validation chooses. Uses no Paddle."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
_ITERATIONS = 300  # largest number of iterations of L-BFGS for one strength
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
    """

    model: LinearModel
    strength: float
    losses: dict[float, float]


def on_one_core(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a function that computes matrix products with one thread.

    The products are so small that several threads spend more time on waiting for each other. On cores that
    other programs use too, they are 40 times slower.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with threadpool_limits(1):
            return function(*args, **kwargs)

    return run


@on_one_core
def fit_head(
    samples: HeadSamples, folds: int, seed: int, check: Callable[[], None] = lambda: None
) -> HeadFit:
    """Chooses the strength of the regularization by cross-validation, and fits a head on all samples.

    See `choose_strength` for the arguments.
    """
    strength, losses = choose_strength(samples, folds, seed, check)
    (model,) = _fit_path(samples, (strength,))
    check()
    return HeadFit(model, strength, losses)


@on_one_core
def choose_strength(
    samples: HeadSamples, folds: int, seed: int, check: Callable[[], None] = lambda: None
) -> tuple[float, dict[float, float]]:
    """Returns the strength of the regularization with the lowest cross-validated loss, and the losses.

    The views of an image are always in the same fold. Their weights add up to 1, so an image with more views
    does not count more.

    Args:
        samples: Features and labels.
        folds: Number of parts of the cross-validation; fewer are used if all classes have fewer images.
        seed: Seed of the folds.
        check: Function that is called between fits; it may raise an exception to stop.
    """
    losses: dict[float, float] = {}
    parts = list(split_folds(samples, folds, seed, _VALIDATED))
    held_out = [samples.select(test, plain=True) for _, test in parts]
    # All folds take a step of the path before the next one, so that the path can end early. The weakest
    # regularization needs most of the time.
    paths = [_fit_path(samples.select(train), STRENGTHS) for train, _ in parts]
    for strength in STRENGTHS if parts else ():
        fold_losses = []
        for path, test in zip(paths, held_out, strict=True):
            fold_losses.append(mean_loss(next(path).logits(test.features), test.targets))
            check()
        losses[strength] = float(np.mean(fold_losses))
        if losses[strength] > min(losses.values()):
            break
    return min(losses, key=lambda each: losses[each]) if losses else _DEFAULT_STRENGTH, losses


@on_one_core
def predict_out_of_fold(
    samples: HeadSamples, folds: int, seed: int, strength: float, check: Callable[[], None] = lambda: None
) -> Floats:
    """Returns the probabilities of each image by a head that was not fitted on this image, [N, classes].

    Images without a view get NaN. See `choose_strength` for the arguments.
    """
    probabilities = np.full((len(samples.labels), samples.classes), np.nan, np.float32)
    for train, test in split_folds(samples, folds, seed):
        (model,) = _fit_path(samples.select(train), (strength,))
        held_out = samples.select(test, plain=True)
        probabilities[held_out.images] = to_probabilities(
            model.logits(held_out.features), several=samples.labels.ndim == 2
        )
        check()
    return probabilities


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
    from sklearn.model_selection import KFold, StratifiedKFold

    images = np.unique(samples.images[samples.plain])
    rng = np.random.default_rng(seed)
    if most is not None and len(images) > most:
        images = np.sort(rng.choice(images, most, replace=False))
    labels = samples.labels[images]
    if labels.ndim == 2:
        count = min(folds, len(images))
        kind = KFold
    else:
        count = min(folds, int(np.bincount(labels).max(initial=0)))
        kind = StratifiedKFold
    if count < 2:
        return
    with warnings.catch_warnings():
        # Classes with fewer images than folds are missing in some of the folds, which is no problem here.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for train, test in kind(count, shuffle=True, random_state=seed).split(images, labels):
            masks = np.zeros((2, len(samples.labels)), np.bool_)
            masks[0, images[train]] = True
            masks[1, images[test]] = True
            yield masks[0], masks[1]


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


def _fit_path(samples: HeadSamples, strengths: tuple[float, ...]) -> Iterator[LinearModel]:
    """Yields the linear layer for each strength of the regularization, each from the previous solution.

    The features are divided by one number for all of them, the root of their mean variance. With one number
    per feature, features that are almost constant in the training images become so large in others that
    the cross-validated loss of 240 digits rises from 0.36 to 0.93.
    """
    weights = (1.0 / np.bincount(samples.images)[samples.images]).astype(np.float32)
    mean = weights @ samples.features / weights.sum()
    scaled = samples.features - mean  # float32, because a copy of a large data set needs a lot of memory
    variance = float(np.einsum("m,md,md->", weights, scaled, scaled)) / (weights.sum() * len(mean))
    scale = float(np.sqrt(variance)) or 1.0
    scaled /= np.float32(scale)
    fit = _fit_several if samples.labels.ndim == 2 else _fit_one
    for weight, bias in fit(scaled, samples.targets, weights, samples.classes, strengths):
        raw = weight / scale
        yield LinearModel(raw.astype(np.float32), (bias - mean @ raw).astype(np.float32))


def _fit_one(
    features: Floats, labels: Ints, weights: NDArray[Any], classes: int, strengths: tuple[float, ...]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yields weight [D, classes] and bias [classes] of multinomial regression for each strength."""
    present = np.unique(labels)
    weight = np.zeros((features.shape[1], classes))
    bias = np.zeros(classes)
    if len(present) == 1:
        bias[:] = -_ABSENT
        bias[present] = 0
        for _ in strengths:
            yield weight, bias
        return
    model = _regression()
    for strength in strengths:
        model.set_params(C=strength)
        _fit_quietly(model, features, labels, weights)
        if len(present) == 2:  # one logit for two classes
            half = model.coef_[0] / 2
            weight[:, present] = np.stack([-half, half], axis=1)
            bias[present] = model.intercept_[0] / 2 * np.array([-1, 1])
        else:
            weight[:, present] = model.coef_.T
            bias[present] = model.intercept_
        absent = np.setdiff1d(np.arange(classes), present)
        if len(absent):
            bias[absent] = float((features @ weight[:, present] + bias[present]).min()) - _ABSENT
        yield weight.copy(), bias.copy()


def _fit_several(
    features: Floats, labels: NDArray[Any], weights: NDArray[Any], classes: int, strengths: tuple[float, ...]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yields weight [D, classes] and bias [classes] of one regression per label for each strength."""
    models = [_regression() for _ in range(classes)]
    for strength in strengths:
        weight = np.zeros((features.shape[1], classes))
        bias = np.zeros(classes)
        for label, model in enumerate(models):
            values = np.unique(labels[:, label])
            if len(values) == 1:
                bias[label] = _ABSENT if values[0] else -_ABSENT
                continue
            model.set_params(C=strength)
            _fit_quietly(model, features, labels[:, label], weights)
            weight[:, label] = model.coef_[0]
            bias[label] = model.intercept_[0]
        yield weight, bias


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=_ITERATIONS, warm_start=True)


def _fit_quietly(model: Any, features: Floats, labels: NDArray[Any], weights: NDArray[Any]) -> None:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # With little regularization, the loss decreases for thousands of iterations without a better result.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, labels, sample_weight=weights)

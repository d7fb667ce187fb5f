"""Implements losses of logits and labels, in float32.

Logits are [B, C] and have any floating dtype. Each loss is a float32 scalar, the mean over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.nn import functional as F


def per_class(values: NDArray[Any] | None) -> Tensor | None:
    """Returns one number per class, [C], as a float32 tensor; None for None."""
    return None if values is None else paddle.to_tensor(values, dtype="float32")


def cross_entropy(
    logits: Tensor,
    label: Tensor,
    smoothing: float = 0.0,
    weights: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    """Returns the cross-entropy between the softmax of ``logits`` and ``label``.

    The target ``t`` sums to 1, so ``-sum(t * log softmax(z)) = log(sum(exp(z))) - sum(t * z)``. With label
    smoothing ``s``, the target is ``(1 - s) * t + s / C`` (Szegedy et al. 2016, section 7), and
    ``sum(t * z)`` is replaced by ``(1 - s) * sum(t * z) + s * mean(z)``. Paddle's `log_softmax` is not used,
    because its results on the CPU are never below -64.

    With offsets ``o``, the share ``s`` is distributed by ``softmax(o)`` instead of uniformly, and the shares
    of several classes are multiplied by it. Otherwise, the optimal logits without offsets would be largest
    for rare classes, whatever the label is.

    Args:
        logits: [B, C].
        label: [B] int64, 0..C-1; or [B, C] float, whose rows sum to 1.
        smoothing: Label smoothing in [0, 1).
        weights: Weight of each class, [C] float32. It is a factor of the whole loss of an image with this
            label; see `_image_weights`. The mean over images is not weighted. Both are different in PyTorch.
        offsets: [C] float32, which are added to the logits.
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        if offsets is not None:
            z = z + offsets
        z = z - z.detach().max(axis=-1, keepdim=True)
        prior = None if offsets is None else F.softmax(offsets)
        if label.ndim == 2:
            target = label.astype("float32")
            if prior is not None:
                target = target * prior
                target = target / target.sum(axis=-1, keepdim=True)
            expected = (target * z).sum(axis=-1)
        else:
            expected = paddle.take_along_axis(z, label.unsqueeze(-1), axis=-1).squeeze(-1)
        if smoothing:
            others = z.mean(axis=-1) if prior is None else (z * prior).sum(axis=-1)
            expected = (1.0 - smoothing) * expected + smoothing * others
        cost = z.exp().sum(axis=-1).log() - expected
        return (cost if weights is None else cost * _image_weights(label, weights)).mean()


def binary_cross_entropy(
    logits: Tensor,
    label: Tensor,
    smoothing: float = 0.0,
    size_sum: bool = False,
    positives: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns the binary cross-entropy of the sigmoid of ``logits``, averaged or summed over classes.

    Args:
        logits: [B, C].
        label: [B, C] float, 0..1; or [B] int64, which is converted to one-hot.
        smoothing: Label smoothing in [0, 1). The target is ``(1 - smoothing) * label + smoothing / C``.
        size_sum: Whether to sum over classes. If False, the loss is averaged over classes.
        positives: Share of images that have each class, [C] float32, for the weights of `label_weights`; None
            for no such weights.
        weights: Weights of the positives of each class, [C] float32. A weight is a factor of the whole cost
            of a positive, including the smoothed part of its target. A label between 0 and 1 has a weight
            between that of a negative, 1, and that of a positive, so its optimal score is still the label.
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        target = _many_hot(label, logits.shape[-1])
        smooth = _smoothed(target, smoothing)
        cost = F.binary_cross_entropy_with_logits(z, smooth, reduction="none")
        if weights is not None:
            cost = cost * (1.0 + target * (weights - 1.0))
        if positives is not None:
            cost = cost * label_weights(target, positives)
        return cost.sum(axis=-1).mean() if size_sum else cost.mean()


def softmax_focal_loss(
    logits: Tensor, label: Tensor, gamma: float, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Returns the focal loss of the softmax, ``-sum(w * t * (1 - p)^gamma * log(p))`` (Lin et al. 2017).

    Args:
        logits: [B, C].
        label: [B] int64, 0..C-1; or [B, C] float, whose rows sum to 1.
        gamma: Focusing exponent. With 0, the loss is the cross-entropy.
        smoothing: Label smoothing in [0, 1).
        weights: Weight of each class, [C] float32, as in `cross_entropy`.
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        z = z - z.detach().max(axis=-1, keepdim=True)
        log_p = z - z.exp().sum(axis=-1, keepdim=True).log()
        target = _smoothed(_many_hot(label, z.shape[-1]), smoothing)
        cost = -(target * _focus(log_p.exp(), gamma) * log_p).sum(axis=-1)
        return (cost if weights is None else cost * _image_weights(label, weights)).mean()


def sigmoid_focal_loss(
    logits: Tensor,
    label: Tensor,
    gamma: float,
    alpha: float | None = None,
    smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns the focal loss of the sigmoid of each class, averaged over classes (Lin et al. 2017).

    Args:
        logits: [B, C].
        label: [B, C] float, 0..1; or [B] int64, which is converted to one-hot.
        gamma: Focusing exponent. With 0, the loss is the binary cross-entropy.
        alpha: Weight of positives; the weight of negatives is 1 - alpha. None: all weights are 1.
        smoothing: Label smoothing in [0, 1).
        weights: Weights of the positives of each class, [C] float32. ``alpha`` and the weights are factors of
            the whole cost of a label, as in `binary_cross_entropy`.
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        target = _many_hot(label, z.shape[-1])
        y = _smoothed(target, smoothing)
        p = F.sigmoid(z)
        focus = _focus(p * y + (1.0 - p) * (1.0 - y), gamma)
        cost = focus * (y * F.softplus(-z) + (1.0 - y) * F.softplus(z))
        positive = 1.0 if alpha is None else alpha
        negative = 1.0 if alpha is None else 1.0 - alpha
        if weights is not None:
            cost = cost * (negative + target * (positive * weights - negative))
        elif alpha is not None:
            cost = cost * (negative + target * (positive - negative))
        return cost.mean()


def _focus(p: Tensor, gamma: float) -> Tensor:
    """Returns ``(1 - p)^gamma``.

    Clips ``1 - p`` above 0, because the gradient of a power may be infinite at 0.
    """
    return (1.0 - p).clip(min=1e-8).pow(gamma)


def thresholded_cross_entropy(logits: Tensor, label: Tensor, smoothing: float, threshold: float) -> Tensor:
    """Returns the binary cross-entropy with binary targets: 1 for labels above a threshold, else 0.

    See "ResNet strikes back" (Wightman et al. 2021, section 2.2).

    Args:
        logits: [B, C].
        label: [B, C] float, 0..1, such as the class probabilities of mixed images; or [B] int64, which is
            converted to one-hot.
        smoothing: Label smoothing in [0, 1), which is applied before the threshold.
        threshold: Threshold in [0, 1).
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        target = _smoothed(_many_hot(label, z.shape[-1]), smoothing) > threshold
        return F.binary_cross_entropy_with_logits(z, target.astype("float32"))


def label_weights(label: Tensor, positives: Tensor) -> Tensor:
    """Returns the weight of each label, [B, C] float32. Rare labels have larger weights.

    If ``r`` is the share of images that have a class, the weight is ``exp(1 - r)`` for labels above 0.5, and
    ``exp(r)`` for other labels. See DeepMAR, Li et al. 2015, section 3.3, with sigma = 1.

    Args:
        label: [B, C] float, 0..1.
        positives: Share of images that have each class, [C] float32.
    """
    return paddle.where(label > 0.5, 1.0 - positives, positives).exp()


@dataclass(frozen=True)
class AsymmetricFocus:
    """Settings of the asymmetric loss that reduce the cost of easy classes.

    Attributes:
        gamma_pos: Exponent for positives.
        gamma_neg: Exponent for negatives.
        clip: Negatives whose probability is at most this value have no cost.
        constant: Whether the focusing factor is treated as a constant, without a gradient.
    """

    gamma_pos: float
    gamma_neg: float
    clip: float
    constant: bool


def asymmetric_loss(
    logits: Tensor, label: Tensor, focus: AsymmetricFocus, epsilon: float, mean: bool
) -> Tensor:
    """Returns the asymmetric loss (Ridnik et al. 2021, equations 4 to 7).

    With ``p = sigmoid(z)``, ``q = min(1 - p + clip, 1)`` and the label ``y``, ``s = y * p + (1 - y) * q`` is
    the probability of the correct answer. The cost of a class is ``-(1 - s)^g * log(max(s, epsilon))`` with
    ``g = y * gamma_pos + (1 - y) * gamma_neg``.

    Args:
        logits: [B, C].
        label: [B, C] float, 0..1; or [B] int64, which is converted to one-hot.
        focus: Exponents and clipping.
        epsilon: Lower bound of the logarithm's argument.
        mean: Whether to average over classes. If False, the loss is summed over classes.
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        y = _many_hot(label, logits.shape[-1])
        right = y * F.sigmoid(z) + (1.0 - y) * (F.sigmoid(-z) + focus.clip).clip(max=1.0)
        # The minimum is not 0, because in Paddle 2.6 the gradient of 0 to the power of 0 is NaN.
        wrong = (1.0 - (right.detach() if focus.constant else right)).clip(min=1e-8)
        factor = wrong.pow(y * focus.gamma_pos + (1.0 - y) * focus.gamma_neg)
        cost = -right.clip(min=epsilon).log() * factor
        return cost.mean() if mean else cost.sum(axis=-1).mean()


def _smoothed(target: Tensor, smoothing: float) -> Tensor:
    return (1.0 - smoothing) * target + smoothing / target.shape[-1] if smoothing else target


def _image_weights(label: Tensor, weights: Tensor) -> Tensor:
    """Returns the weight of each image, [B]: that of its class, or the mean for the shares of its classes.

    It is a factor of the whole loss of the image, so it does not move the minimum of this loss. If each share
    had the weight of its class instead, an image with 97 % of a common class and 3 % of a class that is 40
    times as rare would be learned as the rare class (Mixup), and so would each image with label smoothing.

    Args:
        label: [B] int64, 0..C-1; or [B, C] float, whose rows sum to 1.
        weights: Weight of each class, [C] float32.
    """
    if label.ndim == 1:
        return paddle.gather(weights, label)
    return (label.astype("float32") * weights).sum(axis=-1)


def _many_hot(label: Tensor, classes: int) -> Tensor:
    return F.one_hot(label, classes) if label.ndim == 1 else label.astype("float32")

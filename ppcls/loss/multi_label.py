"""Losses of images that are of several classes."""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.nn import functional as F


def binary_cross_entropy(
    logits: Tensor,
    label: Tensor,
    smoothing: float = 0.0,
    size_sum: bool = False,
    positives: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy of each class's sigmoid, in float32.

    Args:
        logits: [B, C], any floating dtype.
        label: [B, C] float, 0..1; or [B] int64, which is taken as one-hot.
        smoothing: In [0, 1): the target is ``(1 - smoothing) * label + smoothing / C``.
        size_sum: Whether classes are added up; else it is their mean.
        positives: [C] float32, the share of images that are of a class, to weigh by as `label_weights` does.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        z, target = logits.astype("float32"), _many_hot(label, logits.shape[-1])
        smooth = _smoothed(target, smoothing)
        cost = F.binary_cross_entropy_with_logits(z, smooth, reduction="none")
        if positives is not None:
            cost = cost * label_weights(target, positives)
        return cost.sum(axis=-1).mean() if size_sum else cost.mean()


def thresholded_cross_entropy(logits: Tensor, label: Tensor, smoothing: float, threshold: float) -> Tensor:
    """Binary cross-entropy with what is above a threshold taken for 1 and all else for 0, in float32.

    Wightman et al. 2021, "ResNet strikes back", section 2.2.

    Args:
        logits: [B, C], any floating dtype.
        label: [B, C] float, 0..1, such as a mixed image's shares; or [B] int64, which is taken as one-hot.
        smoothing: In [0, 1), before the threshold.
        threshold: In [0, 1).

    Returns:
        The mean over batch and classes, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        target = _smoothed(_many_hot(label, z.shape[-1]), smoothing) > threshold
        return F.binary_cross_entropy_with_logits(z, target.astype("float32"))


def label_weights(label: Tensor, positives: Tensor) -> Tensor:
    """Returns the weight of each label: what is rarer weighs more.

    With ``r`` the share of positives, ``exp(1 - r)`` where a label is above 0.5, and ``exp(r)`` where it is
    not (Li et al. 2015, DeepMAR, section 3.3, for sigma = 1).

    Args:
        label: [B, C] float, 0..1.
        positives: [C] float32.

    Returns:
        [B, C] float32.
    """
    return paddle.where(label > 0.5, 1.0 - positives, positives).exp()


def asymmetric_loss(
    logits: Tensor,
    label: Tensor,
    gamma_pos: float,
    gamma_neg: float,
    clip: float,
    epsilon: float,
    constant_focus: bool,
    mean: bool,
) -> Tensor:
    """Asymmetric loss (Ridnik et al. 2021, equations 4 to 7), in float32.

    With ``p = sigmoid(z)``, ``q = min(1 - p + clip, 1)`` and ``y`` the label, ``s = y * p + (1 - y) * q`` is
    the probability of what is right, and a class costs ``-(1 - s)^g * log(max(s, epsilon))`` with
    ``g = y * gamma_pos + (1 - y) * gamma_neg``.

    Args:
        logits: [B, C], any floating dtype.
        label: [B, C] float, 0..1; or [B] int64, which is taken as one-hot.
        gamma_pos: Exponent of positives.
        gamma_neg: Exponent of negatives.
        clip: Probability up to which negatives cost nothing.
        epsilon: Least probability whose logarithm is taken.
        constant_focus: Whether ``(1 - s)^g`` has no gradient.
        mean: Whether it is the mean over classes; else their sum.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        z, y = logits.astype("float32"), _many_hot(label, logits.shape[-1])
        right = y * F.sigmoid(z) + (1.0 - y) * (F.sigmoid(-z) + clip).clip(max=1.0)
        # Not 0, at which the gradient of a power with exponent 0 is not a number on Paddle 2.6.
        wrong = (1.0 - (right.detach() if constant_focus else right)).clip(min=1e-8)
        focus = wrong.pow(y * gamma_pos + (1.0 - y) * gamma_neg)
        cost = -right.clip(min=epsilon).log() * focus
        return cost.mean() if mean else cost.sum(axis=-1).mean()


def _smoothed(target: Tensor, smoothing: float) -> Tensor:
    return (1.0 - smoothing) * target + smoothing / target.shape[-1] if smoothing else target


def _many_hot(label: Tensor, classes: int) -> Tensor:
    return F.one_hot(label, classes) if label.ndim == 1 else label.astype("float32")

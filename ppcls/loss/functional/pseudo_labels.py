"""The loss of FixMatch (Sohn et al. 2020), in float32."""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.nn import functional as F


def pseudo_label_loss(weak: Tensor, strong: Tensor, temperature: float, threshold: float) -> Tensor:
    """Returns the cross-entropy with confident pseudo labels (Sohn et al. 2020, equation 4).

    Args:
        weak: Logits of the weak views, [U, C]. They get no gradient.
        strong: Logits of the strong views, [U, C].
        temperature: Divisor of the weak logits.
        threshold: Minimum probability of a class that is used as a label.

    Returns:
        Float32 scalar, the sum over confident images, divided by U.
    """
    with paddle.amp.auto_cast(enable=False):
        cost, confident = _costs(weak, strong, temperature, threshold)
        return (cost * confident).mean()


@paddle.no_grad()  # type: ignore[untyped-decorator]
def pseudo_label_sums(weak: Tensor, strong: Tensor, temperature: float, threshold: float) -> Tensor:
    """Returns the sum of the losses, the number of confident images, and the number of images, [3] float32.

    See `pseudo_label_loss` for the arguments.
    """
    if len(weak) == 0:
        return paddle.zeros([3])  # Paddle 2.6 has no maximum of no numbers
    with paddle.amp.auto_cast(enable=False):
        cost, confident = _costs(weak, strong, temperature, threshold)
        images = paddle.full([], len(weak), "float32")
        return paddle.stack([(cost * confident).sum(), confident.sum(), images])


def _costs(weak: Tensor, strong: Tensor, temperature: float, threshold: float) -> tuple[Tensor, Tensor]:
    """Returns the cross-entropy of each image, and 1 for each confident image, [U] each."""
    probability = F.softmax(weak.detach().astype("float32") / temperature, axis=-1)
    confident = (probability.max(axis=-1) >= threshold).astype("float32")
    cost = F.cross_entropy(strong.astype("float32"), probability.argmax(axis=-1), reduction="none")
    return cost.reshape([-1]), confident

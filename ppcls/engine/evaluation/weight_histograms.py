"""How a model's weights are distributed."""

from __future__ import annotations

import math

import numpy as np
import paddle
from paddle import nn

from ppcls.report.record import Histogram

_BINS = 40


@paddle.no_grad()  # type: ignore[untyped-decorator]
def weight_histograms(model: nn.Layer) -> dict[str, Histogram]:
    """Returns name to histogram of each trained tensor whose numbers are finite, counted on the device."""
    found = {}
    for name, weight in model.named_parameters():
        if weight.stop_gradient:  # frozen, or BatchNorm's statistics, which Paddle has among parameters
            continue
        values = weight.astype("float32").flatten()
        low, high, total = paddle.stack([values.min(), values.max(), values.sum()]).tolist()
        if not math.isfinite(total):  # Paddle 2.6's extremes pass over NaN
            continue
        if low == high:
            low, high = low - 0.5, high + 0.5
        places = ((values - low) * (_BINS / (high - low))).clip(0, _BINS)  # Paddle 2.6 wants whole limits
        counts = paddle.histogram(places, bins=_BINS, min=0, max=_BINS)
        found[name] = Histogram(np.asarray(counts.numpy(), np.int64), np.linspace(low, high, _BINS + 1))
    return found

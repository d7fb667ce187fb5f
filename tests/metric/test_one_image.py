"""Metrics of an evaluation with a single image, which are values or NaN, and never an error."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from ppcls.metric.build import GatheredMetric, Rows, build_metrics
from ppcls.registry import METRICS

CLASSES = 6
KEYS = {"DistillationTopkAcc": {"model_key": "Student"}}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_metric_of_one_image_has_values(name: str) -> None:
    spec = METRICS[name](**KEYS.get(name, {}))
    logits = np.random.default_rng(0).standard_normal((1, CLASSES)).astype("float32")
    several = spec.labels == "several"
    label = np.eye(CLASSES, dtype="float32")[[1]] if several else np.array([1])
    metrics = build_metrics([spec], CLASSES)
    rows = {}
    for part in metrics.parts:
        if isinstance(part, GatheredMetric):
            rows[part.output] = Rows(logits, label.reshape(1, -1).astype(float), queries=None)
    outputs = dict.fromkeys(("logits", "features", "Student"), paddle.to_tensor(logits))
    counts = metrics.counts(outputs, paddle.to_tensor(label)).numpy().astype(float)
    values = metrics.values(counts, 1, rows)
    assert list(values) == list(metrics.names)
    assert all(math.isnan(value) or 0 <= value <= 1 for value in values.values())

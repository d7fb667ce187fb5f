"""Statistics of BatchNorm that are estimated again from images."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.arch.batch_statistics import batch_norms, estimate_statistics


@pytest.fixture
def model() -> nn.Layer:
    paddle.seed(0)
    layers = [nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4, momentum=0.999), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Conv2D(4, 2, 1), nn.BatchNorm2D(2, momentum=0.5))


def batches() -> list[paddle.Tensor]:
    rng = np.random.default_rng(0)
    return [
        paddle.to_tensor((rng.normal(size=(4, 3, 9, 9)) * scale + scale).astype("float32"))
        for scale in (1, 2, 5)
    ]


def statistics(model: nn.Layer) -> list[np.ndarray]:
    return [part.numpy() for norm in batch_norms(model) for part in (norm._mean, norm._variance)]


def test_estimate_is_that_of_all_images(model: nn.Layer) -> None:
    model.train()
    estimate_statistics(model, model, batches(), 1)
    outputs = model[0](paddle.concat(batches())).numpy()
    mean, variance, *_ = statistics(model)
    np.testing.assert_allclose(mean, outputs.mean((0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(variance, outputs.var((0, 2, 3)), rtol=1e-2)
    assert all(layer.training for layer in model.sublayers(include_self=True))


def test_estimate_repeats_and_does_not_depend_on_earlier_statistics(model: nn.Layer) -> None:
    model.eval()
    estimate_statistics(model, model, batches(), 1)
    first = statistics(model)
    for norm in batch_norms(model):
        norm._mean.fill_(7.0)
        norm._variance.fill_(3.0)
    estimate_statistics(model, model, batches(), 1)
    for one, other in zip(first, statistics(model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(layer.training for layer in model.sublayers(include_self=True))


def test_error_restores_the_statistics(model: nn.Layer) -> None:
    before = statistics(model)

    def fail(batch: paddle.Tensor) -> None:
        model(batch)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        estimate_statistics(model, fail, batches(), 1)
    for one, other in zip(before, statistics(model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_layers_that_evaluations_do_not_use_do_not_change(model: nn.Layer) -> None:
    before = statistics(model)
    estimate_statistics(model, model[:2], batches(), 1)
    after = statistics(model)
    assert (before[0] != after[0]).any()
    for one, other in zip(before[2:], after[2:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_frozen_layers_do_not_change(model: nn.Layer) -> None:
    model[1]._use_global_stats = True
    before = statistics(model)
    estimate_statistics(model, model, batches(), 1)
    after = statistics(model)
    np.testing.assert_array_equal(before[0], after[0])
    assert (before[2] != after[2]).any()

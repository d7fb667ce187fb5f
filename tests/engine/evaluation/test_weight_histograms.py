from __future__ import annotations

import numpy as np
import paddle
from small_net import Net

from ppcls.engine.evaluation.weight_histograms import weight_histograms


def test_every_number_is_counted_between_the_edges() -> None:
    model = Net()
    found = weight_histograms(model)
    assert list(found) == ["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"], "what is trained"
    trained = dict(model.named_parameters())
    for name, histogram in found.items():
        values = trained[name].numpy().ravel()
        assert histogram.counts.sum() == len(values)
        assert len(histogram.edges) == len(histogram.counts) + 1
        assert histogram.edges[0] <= values.min() <= values.max() <= histogram.edges[-1]
    np.testing.assert_allclose(
        found["conv.weight"].counts, np.histogram(model.conv.weight.numpy(), bins=40)[0], atol=1
    )


def test_equal_and_not_finite_numbers() -> None:
    model = Net()
    with paddle.no_grad():
        model.fc.bias.set_value(paddle.to_tensor([1.0, float("nan"), 0.0, 0.0]))
    found = weight_histograms(model)
    assert "fc.bias" not in found
    assert found["bn.weight"].counts.sum() == 4, "all ones"
    assert (found["bn.weight"].edges[0], found["bn.weight"].edges[-1]) == (0.5, 1.5)


def test_half_precision_counts_too() -> None:
    model = Net()
    model.conv.weight = paddle.create_parameter([2, 2], "float32")
    model.to(dtype="bfloat16")
    assert weight_histograms(model)["fc.weight"].counts.sum() == 16

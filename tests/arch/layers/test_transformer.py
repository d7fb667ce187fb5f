from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.arch.cost import measure
from ppcls.arch.layers.drop_path import draws_random_numbers, drop_paths, dropout
from ppcls.arch.layers.transformer import Mlp, SelfAttention, TransformerBlock, linear


def softmax(x: np.ndarray) -> np.ndarray:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


@pytest.mark.parametrize("groups", [None, 1, 3])
def test_attention_equals_formula(groups: int | None) -> None:
    """Equation 1 of Vaswani et al., one head at a time."""
    paddle.seed(1)
    batch, tokens, width, heads = 6, 5, 8, 2
    layer = SelfAttention(width, heads, scale=0.3)
    for parameter in layer.parameters():
        parameter.set_value(paddle.randn(parameter.shape))
    x = paddle.randn([batch, tokens, width])
    bias = None if groups is None else paddle.randn([groups, heads, tokens, tokens])
    parts = x.numpy() @ layer.qkv.weight.numpy() + layer.qkv.bias.numpy()
    mixed = np.empty((batch, tokens, width), np.float32)
    for i in range(batch):
        for head in range(heads):
            query, key, value = (
                parts[i, :, part * width + 4 * head : part * width + 4 * head + 4] for part in range(3)
            )
            scores = 0.3 * query @ key.T
            if bias is not None:
                scores += bias[i % groups, head].numpy()
            mixed[i, :, 4 * head : 4 * head + 4] = softmax(scores) @ value
    expected = mixed @ layer.proj.weight.numpy() + layer.proj.bias.numpy()
    np.testing.assert_allclose(layer.attend(x, bias).numpy(), expected, rtol=0, atol=1e-5)


def test_cost_includes_attention_products() -> None:
    tokens, width = 7, 12

    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.block = TransformerBlock(width, SelfAttention(width, 3), 20)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.block(x.squeeze(1))

    linears = tokens * width * (3 * width + width + 20 + 20)
    parameters = 4 * width * width + 4 * width + 2 * 20 * width + 20 + width + 4 * width
    assert measure(Model, (1, tokens, width)) == (parameters, linears + 2 * tokens * tokens * width)


def test_mlp_equals_formula() -> None:
    layer = Mlp(4, 6)
    x = paddle.randn([3, 4])
    hidden = layer.fc1(x).numpy()
    gelu = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
    expected = layer.fc2(paddle.to_tensor(gelu.astype("float32")))
    np.testing.assert_allclose(layer(x).numpy(), expected.numpy(), rtol=0, atol=1e-6)


def test_block_without_dropout_draws_no_random_numbers() -> None:
    """A training step with it can be captured."""
    assert not draws_random_numbers(TransformerBlock(6, SelfAttention(6, 2), 8))
    for rate in ("drop_rate", "drop_path"):
        assert draws_random_numbers(TransformerBlock(6, SelfAttention(6, 2), 8, **{rate: 0.1}))
    assert draws_random_numbers(SelfAttention(6, 2, attn_drop_rate=0.1))
    assert isinstance(dropout(0.0), nn.Identity)


def test_drop_paths_increase_with_depth() -> None:
    assert drop_paths(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert drop_paths(0.3, 1) == [0]


def test_linear_initial_weights_have_deviation() -> None:
    """No outliers: Paddle's truncated normal sometimes returns its bound, a hundred deviations."""
    paddle.seed(1)
    weight = linear(1000, 1000).weight.numpy()
    assert abs(weight.std() - 0.02) < 1e-4
    assert np.abs(weight).max() < 0.02 * 6.5

"""BatchNorm, addition and ReLU at once give what the three give one by one."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.arch.norm_act import norm_relu
from ppcls.arch.resnet import ResNet18


class Block(nn.Layer):
    """One of them, or two with an addition."""

    def __init__(self, channels: int, *, shortcut: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2D(channels, data_format="NHWC")
        self.shortcut = shortcut

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return norm_relu(self.norm, x, x * 0.5 if self.shortcut else None)


@pytest.mark.parametrize("shortcut", [False, True])
def test_is_relu_of_the_norm_and_the_shortcut(shortcut: bool) -> None:
    paddle.seed(1)
    block = Block(8, shortcut=shortcut)
    x = paddle.randn([4, 3, 3, 8])
    norm = nn.BatchNorm2D(8, data_format="NHWC")(x)
    expected = nn.functional.relu(norm + x * 0.5 if shortcut else norm)
    np.testing.assert_array_equal(block(x).numpy(), expected.numpy())


@pytest.mark.gpu
def test_a_compiled_model_trains_like_the_model_itself() -> None:
    if not paddle.__version__.startswith("2.6"):
        pytest.skip("the operators are Paddle 2.6's")
    results = []
    for compiled in (False, True):
        paddle.seed(1)
        model = paddle.amp.decorate(ResNet18(10, data_format="NHWC"), level="O2", dtype="float16")
        network = paddle.jit.to_static(model, full_graph=True) if compiled else model
        network.train()
        image = paddle.to_tensor(np.random.default_rng(0).normal(size=(16, 64, 64, 3)).astype(np.float16))
        logits = network(image)
        logits.astype("float32").square().mean().backward()
        gradients = {
            name: each.grad.astype("float32").numpy()
            for name, each in model.named_parameters()
            if not each.stop_gradient
        }
        statistics = {name: each.numpy() for name, each in model.state_dict().items() if "_mean" in name}
        results.append((logits.astype("float32").numpy(), gradients, statistics))
        if compiled:
            program = network.forward.concrete_program.main_program
            kinds = [op.type for op in program.global_block().ops]
            assert kinds.count("fused_bn_add_activation") == 8
            assert kinds.count("fused_batch_norm_act") == 9
    (logits, gradients, statistics), (others, their_gradients, their_statistics) = results
    np.testing.assert_allclose(others, logits, atol=0.05)
    for name, gradient in gradients.items():
        distance = np.linalg.norm(their_gradients[name] - gradient)
        assert distance < 0.05 * np.linalg.norm(gradient) + 1e-4, name
    for name, each in statistics.items():
        np.testing.assert_allclose(their_statistics[name], each, atol=2e-3, err_msg=name)

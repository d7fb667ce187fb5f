"""BatchNorm, addition and ReLU as one operator compute the same as three operators."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.arch.families.resnet import ResNet18
from ppcls.arch.layers.norm_act import expect_float16, norm_relu


class Block(nn.Layer):
    """One fused operator, or two with an addition."""

    def __init__(self, channels: int, *, shortcut: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2D(channels, data_format="NHWC")
        self.shortcut = shortcut

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return norm_relu(self.norm, x, x * 0.5 if self.shortcut else None)


@pytest.mark.parametrize("shortcut", [False, True])
def test_norm_relu_adds_shortcut_before_relu(shortcut: bool) -> None:
    paddle.seed(1)
    block = Block(8, shortcut=shortcut)
    x = paddle.randn([4, 3, 3, 8])
    norm = nn.BatchNorm2D(8, data_format="NHWC")(x)
    expected = nn.functional.relu(norm + x * 0.5 if shortcut else norm)
    np.testing.assert_array_equal(block(x).numpy(), expected.numpy())


def one_pass(compiled: bool, level: str = "") -> tuple[paddle.nn.Layer, dict[str, np.ndarray]]:
    """Returns the network, and logits, gradients and running means of one batch, float32.

    Args:
        compiled: Whether the network is compiled.
        level: Level of mixed precision; "" for float32.
    """
    paddle.seed(1)
    model = ResNet18(class_num=10, data_format="NHWC")
    half = level == "O2"
    if half:
        model = paddle.amp.decorate(model, level="O2", dtype="float16")
    if level == "O1":
        expect_float16(model)
    network = paddle.jit.to_static(model, full_graph=True) if compiled else model
    network.train()
    image = np.random.default_rng(0).normal(size=(16, 64, 64, 3)).astype(np.float16 if half else np.float32)
    with paddle.amp.auto_cast(level == "O1", dtype="float16"):
        logits = network(paddle.to_tensor(image)).astype("float32")
    logits.square().mean().backward()
    found = {"logits": logits.numpy()}
    for name, each in model.named_parameters():
        if not each.stop_gradient:
            found[f"gradient of {name}"] = each.grad.astype("float32").numpy()
        elif name.endswith("_mean"):
            found[name] = each.numpy()
    return network, found


@pytest.mark.gpu
@pytest.mark.parametrize(("level", "fused_relus"), [("O2", 9), ("O1", 0)])
def test_fused_operator_is_as_accurate_as_eager(level: str, fused_relus: int) -> None:
    """Both are compared with float32, as float16 alone changes the sums."""
    if not paddle.__version__.startswith("2.6"):
        pytest.skip("the operators are Paddle 2.6's")
    _, exact = one_pass(compiled=False)
    _, plain = one_pass(compiled=False, level=level)
    network, fused = one_pass(compiled=True, level=level)
    program = network.forward.concrete_program.main_program
    kinds = [op.type for op in program.global_block().ops]
    assert kinds.count("fused_bn_add_activation") == 8
    assert kinds.count("fused_batch_norm_act") == fused_relus
    for name, reference in exact.items():
        error = np.linalg.norm(fused[name] - reference)
        allowed = 2 * np.linalg.norm(plain[name] - reference) + 1e-3 * np.linalg.norm(reference) + 1e-6
        assert error <= allowed, name

"""Compares one training step of a fused model with one of its own layers: fused_model_run.py NAME

Prints JSON: both losses, and the largest relative differences of gradients, running statistics and outputs.
The test starts it with NVIDIA_TF32_OVERRIDE=0: in TF32, small differences grow from layer to layer.
"""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import paddle
from paddle import Tensor, nn

from ppcls.arch.build import build_model
from ppcls.arch.fused.layers import fuse


def difference(one: Tensor, other: Tensor) -> float:
    """Returns the norm of the difference, relative to that of ``other``."""
    expected = other.numpy()
    return float(np.linalg.norm(one.numpy() - expected) / (np.linalg.norm(expected) + 1e-6))


def main(name: str) -> None:
    paddle.seed(0)
    model = build_model(name, 10, "NHWC", 3)
    fused = copy.deepcopy(model)
    assert fuse(fused) > 0
    images, losses = paddle.randn([16, 64, 64, 3]), []
    for net in (fused, model):
        net.train()
        loss = nn.functional.cross_entropy(net(images), paddle.arange(16) % 10)
        loss.backward()
        losses.append(float(loss))
        net.eval()
    pairs = list(zip(fused.parameters(), model.parameters(), strict=True))
    trained = [pair for pair in pairs if not pair[1].stop_gradient]
    with paddle.no_grad():
        outputs = difference(fused(images), model(images))
    result = {
        "losses": losses,
        "gradients": max(difference(one.grad, other.grad) for one, other in trained),
        "statistics": max(difference(one, other) for one, other in pairs),
        "outputs": outputs,
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])

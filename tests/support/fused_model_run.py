"""Compares a training step of a fused model, and one of its own layers, with the CPU: fused_model_run.py NAME

Prints JSON: the losses on the CPU, with the model's own layers and fused; and for both ways the largest
relative differences of gradients, running statistics and outputs from those of the CPU. Small differences
grow from layer to layer, so the test compares the two ways with each other.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.fused.layers import fuse

WAYS = ("own", "fused")


def difference(values: NDArray[Any], expected: NDArray[Any]) -> float:
    """Returns the norm of the difference, relative to that of ``expected``."""
    return float(np.linalg.norm(values - expected) / (np.linalg.norm(expected) + 1e-6))


def train_once(model: nn.Layer, images: NDArray[np.float32]) -> dict[str, Any]:
    """Returns the loss and gradients of a model, and its parameters and outputs after the step."""
    model.train()
    batch = paddle.to_tensor(images)
    loss = nn.functional.cross_entropy(model(batch), paddle.arange(len(images)) % 10)
    loss.backward()
    model.eval()
    with paddle.no_grad():
        outputs = model(batch).numpy()
    parameters = model.parameters()
    return {
        "loss": float(loss),
        "gradients": [each.grad.numpy() for each in parameters if not each.stop_gradient],
        "statistics": [each.numpy() for each in parameters],
        "outputs": [outputs],
    }


def main(name: str) -> None:
    images = np.random.default_rng(0).standard_normal((16, 64, 64, 3), np.float32)
    paddle.set_device("cpu")
    paddle.seed(0)
    exact = build_model(name, 10, "NCHW", 3)
    weights = {key: value.numpy() for key, value in exact.state_dict().items()}
    expected = train_once(exact, np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    paddle.set_device("gpu")
    result: dict[str, Any] = {"losses": [expected["loss"]]}
    for way in WAYS:
        model = build_model(name, 10, "NHWC", 3)
        model.set_state_dict(weights)
        if way == "fused":
            assert fuse(model) > 0
        actual = train_once(model, images)
        result["losses"].append(actual["loss"])
        result[way] = {
            key: max(map(difference, actual[key], expected[key]))
            for key in ("gradients", "statistics", "outputs")
        }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])

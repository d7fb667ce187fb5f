"""Exports small networks as PaddleClas does: ``paddle.jit.save`` of a network and its activation."""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
from paddle import Tensor, nn

# Number of outputs, last function, and side of the images in pixels
KINDS = (
    (3, "softmax", 64),
    (5, "softmax", 64),
    (1000, "softmax", 96),
    (26, "sigmoid", 64),
    (6, "none", 64),
)
_ACTIVATIONS = {"softmax": lambda: nn.Softmax(axis=-1), "sigmoid": nn.Sigmoid, "none": nn.Identity}


class Exported(nn.Layer):  # type: ignore[misc]
    """A network and its activation."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        convolution = nn.Conv2D(3, 4, 3, stride=2)
        head = nn.Linear(4, width)
        self.network = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2D(1), nn.Flatten(), head)
        self.activation = _ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """Returns the outputs, [B, width]."""
        return self.activation(self.network(x))


def build(width: int, activation: str) -> nn.Layer:
    """Returns a network with the same weights in each process."""
    paddle.seed(0)
    model = Exported(width, activation)
    model.eval()
    return model


if __name__ == "__main__":
    skipped = sys.argv[2:]  # Paddle 3.3 can't write a sigmoid in the format of Paddle 2.6
    for width, activation, side in (kind for kind in KINDS if kind[1] not in skipped):
        spec = paddle.static.InputSpec([None, 3, side, side], "float32")
        target = Path(sys.argv[1]) / f"{width}_{activation}" / "inference"
        model = paddle.jit.to_static(build(width, activation), input_spec=[spec])
        paddle.jit.save(model, str(target))

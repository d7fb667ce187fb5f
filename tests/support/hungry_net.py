"""A model that needs more memory than any machine has."""

from __future__ import annotations

import paddle
from paddle import nn


class HungryNet(nn.Layer):
    """Allocates too much memory, either in training or in evaluation."""

    def __init__(self, classes: int, in_training: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(3, classes)
        self._in_training = in_training

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        if self.training == self._in_training:
            paddle.zeros([1 << 45])
        return self.fc(image.mean([2, 3]))

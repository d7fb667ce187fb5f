"""tools/train.py for two models: one without BatchNorm, one with it and with dropout."""

from __future__ import annotations

import sys

from ppcls.registry import ARCHITECTURES


def linear(class_num: int, data_format: str, input_image_channel: int) -> object:
    """Builds a linear classifier that is no list of stages."""
    from paddle import Tensor, nn

    class Linear(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16 * 16 * input_image_channel, class_num)

        def forward(self, image: Tensor) -> Tensor:
            return self.fc(image.flatten(1))

    return Linear()


def normalized(class_num: int, data_format: str, input_image_channel: int) -> object:
    """Builds one with BatchNorm and dropout."""
    from paddle import Tensor, nn

    class Normalized(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2D(input_image_channel)
            self.drop = nn.Dropout(0.5)
            self.fc = nn.Linear(16 * 16 * input_image_channel, class_num)

        def forward(self, image: Tensor) -> Tensor:
            return self.fc(self.drop(self.norm(image)).flatten(1))

    return Normalized()


if __name__ == "__main__":
    from ppcls.cli import train

    ARCHITECTURES.register("Layer", linear)
    ARCHITECTURES.register("Normalized", normalized)
    sys.exit(train())

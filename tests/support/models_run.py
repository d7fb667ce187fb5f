"""Runs tools/train.py with small models: without BatchNorm, with BatchNorm and dropout, and convolutional."""

from __future__ import annotations

import sys

from omitted_pictures import omit_curves

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


def convolving(class_num: int, data_format: str, input_image_channel: int) -> object:
    """Builds one with a convolution."""
    from paddle import Tensor, nn

    class Convolving(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2D(input_image_channel, 4, 3, stride=4, padding=1)
            self.fc = nn.Linear(4 * 4 * 4, class_num)

        def forward(self, image: Tensor) -> Tensor:
            return self.fc(self.conv(image).flatten(1))

    return Convolving()


MODELS = {"Layer": linear, "Normalized": normalized, "Convolving": convolving}

if __name__ == "__main__":
    from ppcls.cli.train import train

    for name, model in MODELS.items():
        ARCHITECTURES.register(name, model)
    omit_curves()
    sys.exit(train())

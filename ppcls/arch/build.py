"""Builds a model from the name of its architecture."""

from __future__ import annotations

from typing import Literal

from paddle import Tensor, nn
from paddle.vision import models

from ppcls.errors import counted
from ppcls.outputs import AUXILIARY, LOGITS, Outputs
from ppcls.registry import ARCHITECTURES
from ppcls.zoo import architecture


def build_model(
    name: str,
    class_num: int = 1000,
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
    input_image_channel: int = 3,
    **options: float | str,
) -> nn.Layer:
    """Builds the architecture ``name`` with new parameters, drawn from Paddle's global generator.

    Args:
        name: Name of the architecture in `ppcls.registry.ARCHITECTURES`.
        class_num: Number of classes.
        data_format: Layout of the input images.
        input_image_channel: Number of channels of the input images.
        options: Further options of this architecture; see `ppcls.zoo.Architecture.options`.

    Returns:
        A layer that maps images [B, C, H, W] or [B, H, W, C] to logits [B, class_num].

    Raises:
        UnknownNameError: There is no architecture of this name.
        ValueError: The architecture does not support this layout or number of channels.
    """
    builder = ARCHITECTURES[name]
    entry = architecture(name)
    if not entry.fixed_input:
        return builder(
            class_num=class_num, data_format=data_format, input_image_channel=input_image_channel, **options
        )
    if (data_format, input_image_channel) != ("NCHW", entry.channels):
        raise ValueError(
            f"paddle.vision.models.{name}: expected NCHW images with {counted(entry.channels, 'channel')}, "
            f"got {data_format} images with {input_image_channel}; change them or the architecture"
        )
    return builder(num_classes=class_num)


class GoogLeNet(models.GoogLeNet):  # type: ignore[misc]
    """`paddle.vision.models.GoogLeNet` with its auxiliary classifiers in training, as in PaddleClas."""

    def forward(self, inputs: Tensor) -> Outputs:
        """Maps images [B, 3, 224, 224] to logits; in training, to the logits of each classifier by name."""
        logits, *others = models.GoogLeNet.forward(self, inputs)  # Paddle 2.6 cannot compile super()
        return {LOGITS: logits, **dict(zip(AUXILIARY, others, strict=True))} if self.training else logits


class SingleOutputGoogLeNet(models.GoogLeNet):  # type: ignore[misc]
    """Paddle's GoogLeNet without its two auxiliary outputs, whose parameters are frozen."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__(num_classes)
        for name in ("_conv_o1", "_fc_o1", "_out1", "_conv_o2", "_fc_o2", "_out2"):
            for parameter in getattr(self, name).parameters():
                parameter.stop_gradient = True

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps images [B, 3, 224, 224] to logits [B, num_classes]."""
        logits, _, _ = models.GoogLeNet.forward(self, inputs)  # Paddle 2.6 cannot compile super()
        return logits

"""From the name of an architecture to a model."""

from __future__ import annotations

from typing import Literal

from paddle import nn

from ppcls.config.sections.model import published_side
from ppcls.registry import ARCHITECTURES, VISION_MODELS

_SIDES = {  # of images, where the published model takes others than 224 x 224
    "EfficientNetB1": 240,
    "EfficientNetB2": 260,
    "EfficientNetB3": 300,
    "EfficientNetB4": 380,
    "EfficientNetB5": 456,
    "EfficientNetB6": 528,
    "EfficientNetB7": 600,
    "inception_v3": 299,
    "LeNet": 28,
}


def build_model(
    name: str,
    class_num: int = 1000,
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
    input_image_channel: int = 3,
    **options: float | str,
) -> nn.Layer:
    """Builds the architecture ``name`` with fresh parameters, drawn from Paddle's global generator.

    Args:
        name: As registered in `ppcls.registry.ARCHITECTURES`: ours, or one of `paddle.vision.models`.
        class_num: Number of classes.
        data_format: Layout of the images the model takes.
        input_image_channel: Channels of the images.
        options: What this architecture takes beside; see `ppcls.config.sections.model`.

    Returns:
        A layer that maps images [B, C, H, W] or [B, H, W, C] to logits [B, class_num].

    Raises:
        UnknownNameError: No architecture has this name.
        ValueError: A model of `paddle.vision.models` takes no other layout or channels than its own.
    """
    if name in VISION_MODELS:
        own = {"data_format": "NCHW", "input_image_channel": input_shape(name)[0]}
        if own != {"data_format": data_format, "input_image_channel": input_image_channel}:
            raise ValueError(f"paddle.vision.models' {name} takes {own} only")
        return ARCHITECTURES[name](num_classes=class_num)
    return ARCHITECTURES[name](
        class_num=class_num, data_format=data_format, input_image_channel=input_image_channel, **options
    )


def input_shape(name: str) -> tuple[int, int, int]:
    """Returns [C, H, W] of the images that the architecture ``name`` was published with."""
    side = _SIDES.get(name) or published_side(name) or 224
    return 1 if name == "LeNet" else 3, side, side

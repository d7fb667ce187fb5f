"""EfficientNet-Lite: EfficientNet (Tan and Le 2019) without squeeze-and-excitation and with ReLU6.

The architecture was published by Google (tensorflow/tpu, models/official/efficientnet/lite). Unlike in
EfficientNet, the widths of stem and head are not scaled, and the first and last stage always have one block.
The parameters have timm's names, so that timm's weights ``tf_efficientnet_lite*`` fit.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.families.efficientnet import STAGES, reject_padding
from ppcls.arch.layers.conv_norm import DataFormat, batch_norm, round_channels
from ppcls.arch.layers.drop_path import DropPath
from ppcls.arch.public.names import EPSILON, PublicNames

_STEM = 32
_HEAD = 1280
_DROP_PATH = 0.2  # probability of skipping the last block; proportional to the depth for earlier blocks


def same_padding(kernel: int, stride: int, side: int) -> list[int]:
    """Returns TensorFlow's padding "same" for an input of ``side``, as [top, bottom, left, right].

    If ``side`` is 0, the padding is the same on all sides.
    """
    if not side:
        return [kernel // 2] * 4
    total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    before = total // 2
    return [before, total - before, before, total - before]


class LiteBlock(nn.Layer):  # type: ignore[misc]
    """An inverted residual without squeeze-and-excitation.

    Args:
        channels: Number of channels of the input and of the output.
        expansion: Number of channels of the depthwise convolution divided by that of the input.
        kernel: Kernel of the depthwise convolution.
        stride: Stride of the depthwise convolution.
        side: Side of the feature map for the published input size.
        drop_path: Probability of skipping the block for an image in training.
        data_format: Layout of input and output.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        expansion: int,
        kernel: int,
        stride: int,
        side: int,
        drop_path: float,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        in_channels, out_channels = channels
        width = in_channels * expansion
        conv = partial(nn.Conv2D, bias_attr=False, data_format=data_format)
        norm = partial(batch_norm, data_format=data_format, epsilon=1e-3)
        depthwise = conv(
            width, width, kernel, stride, padding=same_padding(kernel, stride, side), groups=width
        )
        # Batch norm follows each convolution, and ReLU6 follows each convolution except the last one.
        if expansion == 1:
            convolutions = {"conv_dw": depthwise, "conv_pw": conv(width, out_channels, 1)}
        else:
            convolutions = {
                "conv_pw": conv(in_channels, width, 1),
                "conv_dw": depthwise,
                "conv_pwl": conv(width, out_channels, 1),
            }
        self._names = [(name, f"bn{number}") for number, name in enumerate(convolutions, 1)]
        for (name, norm_name), convolution in zip(self._names, convolutions.values(), strict=True):
            self.add_sublayer(name, convolution)
            self.add_sublayer(norm_name, norm(convolution.weight.shape[0]))
        self._has_shortcut = stride == 1 and in_channels == out_channels
        self.drop_path = DropPath(drop_path) if self._has_shortcut and drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = x
        for name, norm_name in self._names:
            y = getattr(self, norm_name)(getattr(self, name)(y))
            if name != self._names[-1][0]:
                y = F.relu6(y)
        return x + self.drop_path(y) if self._has_shortcut else y


def _public_epsilon(model: nn.Layer, _timm: bool) -> float | None:
    return EPSILON if model.timm_variant else None


def _reject_padding(model: nn.Layer, names: Collection[str], source: str) -> str:
    # The name of an export of ppcls need not contain the name of timm's network. It has no counters.
    has_counters = any(name.endswith("num_batches_tracked") for name in names)
    is_export = "efficientnet_lite" not in source and not has_counters
    return "" if is_export and not model.timm_variant else reject_padding(model, names, source)


class EfficientNetLite(nn.Layer):  # type: ignore[misc]
    """The EfficientNet-Lite network.

    Args:
        width: Factor for the number of channels of each stage.
        depth: Factor for the number of blocks of each stage.
        side: Side of the images in the publication.
        dropout: Dropout rate before the classifier.
        class_num: Number of classes.
        data_format: Layout of the images. Parameters have the same shapes in both layouts.
        input_image_channel: Number of channels of the images.
        timm_variant: Whether to pad evenly, as in timm's networks whose names do not begin with ``tf_``.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={},
        own_names=True,
        epsilon=_public_epsilon,
        reject_file=_reject_padding,
    )

    def __init__(
        self,
        width: float,
        depth: float,
        side: int,
        dropout: float,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        side = 0 if timm_variant else side
        conv = partial(nn.Conv2D, bias_attr=False, data_format=data_format)
        norm = partial(batch_norm, data_format=data_format, epsilon=1e-3)
        self.conv_stem = conv(input_image_channel, _STEM, 3, 2, padding=same_padding(3, 2, side))
        self.bn1 = norm(_STEM)
        side = math.ceil(side / 2)
        last_stage = len(STAGES) - 1
        repeats = [
            blocks if stage in (0, last_stage) else math.ceil(blocks * depth)
            for stage, (blocks, *_) in enumerate(STAGES)
        ]
        self._positions = [(stage, i) for stage, blocks in enumerate(repeats) for i in range(blocks)]
        channels = _STEM
        number = 0
        stages = []
        for blocks, (_, kernel, first_stride, expansion, out_channels) in zip(repeats, STAGES, strict=True):
            out_channels = round_channels(out_channels * width)
            stage = []
            for i in range(blocks):
                stride = 1 if i else first_stride
                rate = _DROP_PATH * number / sum(repeats)
                sides = (channels, out_channels)
                stage.append(LiteBlock(sides, expansion, kernel, stride, side, rate, data_format))
                channels = out_channels
                number = number + 1
                side = math.ceil(side / stride)
            stages.append(nn.Sequential(*stage))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = conv(channels, _HEAD, 1)
        self.bn2 = norm(_HEAD)
        self.pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(_HEAD, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.blocks(F.relu6(self.bn1(self.conv_stem(x))))
        x = F.relu6(self.bn2(self.conv_head(x)))
        return self.classifier(self.dropout(self.pool(x).flatten(1)))

    def translate_torch_name(self, name: str) -> str:
        """Returns the network's name for a parameter of efficientnet_lite_pytorch; timm's name unchanged."""
        layer, _, rest = name.partition(".")
        if layer in _LAYERS:
            return f"{_LAYERS[layer]}.{rest}"
        if layer != "_blocks":
            return name
        number, part, parameter = rest.split(".", 2)
        stage, i = self._positions[int(number)]
        names = _FIRST_BLOCK if stage == 0 else _BLOCK
        return f"blocks.{stage}.{i}.{names[part]}.{parameter}"


# Names of layers in the package efficientnet_lite_pytorch, and names of the same layers in this network.
_LAYERS = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}

EfficientNet_lite0 = partial(EfficientNetLite, 1.0, 1.0, 224, 0.2)
EfficientNet_lite1 = partial(EfficientNetLite, 1.0, 1.1, 240, 0.2)
EfficientNet_lite2 = partial(EfficientNetLite, 1.1, 1.2, 260, 0.3)
EfficientNet_lite3 = partial(EfficientNetLite, 1.2, 1.4, 280, 0.3)
EfficientNet_lite4 = partial(EfficientNetLite, 1.4, 1.8, 300, 0.3)

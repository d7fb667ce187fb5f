"""MixNet (Tan and Le 2019, https://arxiv.org/abs/1907.09595). It mixes depthwise kernels of several sizes."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, DataFormat, batch_norm, round_channels
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation
from ppcls.arch.public.names import PublicNames, Rule

_FEATURES = 1536
_SQUEEZE = (0, 2, 4, 2)  # argument `squeeze` of MixedBlock, per stage

# Output channels, numbers of parallel convolutions that expand, filter and reduce the channels, expansion.
_Block = tuple[int, int, int, int, int]
_SMALL: tuple[tuple[_Block, ...], ...] = (
    ((24, 2, 1, 2, 6), (24, 2, 1, 2, 3)),
    ((40, 1, 3, 1, 6), *[(40, 2, 2, 2, 6)] * 3),
    ((80, 1, 3, 2, 6), *[(80, 1, 2, 2, 6)] * 2),
    ((120, 2, 3, 2, 6), *[(120, 2, 4, 2, 3)] * 2, (200, 1, 5, 1, 6), *[(200, 1, 4, 2, 6)] * 2),
)
_MEDIUM: tuple[tuple[_Block, ...], ...] = (
    ((32, 2, 3, 2, 6), (32, 2, 1, 2, 3)),
    ((40, 1, 4, 1, 6), *[(40, 2, 2, 2, 6)] * 3),
    ((80, 1, 3, 1, 6), *[(80, 2, 4, 2, 6)] * 3),
    ((120, 1, 1, 1, 6), *[(120, 2, 4, 2, 3)] * 3, (200, 1, 4, 1, 6), *[(200, 1, 4, 2, 6)] * 3),
)


def _split(channels: int, count: int) -> list[int]:
    """Splits ``channels`` into ``count`` parts and returns their sizes. The first part is the largest."""
    part, rest = divmod(channels, count)
    # The first part gets the rest, as in PaddleClas and timm: the shapes of the weights depend on it.
    return [part + rest] + [part] * (count - 1)


class MixedConvNorm(nn.Layer):  # type: ignore[misc]
    """Parallel convolutions of parts of the channels, followed by batch norm and an optional activation.

    Args:
        kernels: Kernel of each convolution.
        depthwise: Whether the convolutions are depthwise.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernels: list[int],
        stride: int = 1,
        depthwise: bool = False,
        act: Activation | None = None,
        data_format: DataFormat = "NCHW",
    ) -> None:
        super().__init__()
        self._parts, outputs = (_split(channels, len(kernels)) for channels in (in_channels, out_channels))
        convs = nn.LayerList()
        for inputs, out, kernel in zip(self._parts, outputs, kernels, strict=True):
            conv = partial(nn.Conv2D, padding=kernel // 2, groups=inputs if depthwise else 1, bias_attr=False)
            convs.append(conv(inputs, out, kernel, stride, data_format=data_format))
        self.conv = convs if len(kernels) > 1 else convs[0]
        self.bn = batch_norm(out_channels, data_format)
        self._act = act
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        if len(self._parts) == 1:
            x = self.conv(x)
        else:
            parts = paddle.split(x, self._parts, self._axis)
            x = paddle.concat([conv(parts[i]) for i, conv in enumerate(self.conv)], self._axis)
        x = self.bn(x)
        return x if self._act is None else self._act(x)


class MixedBlock(nn.Layer):  # type: ignore[misc]
    """An inverted residual of mixed convolutions.

    Args:
        squeeze: Number of input channels of the block divided by the number of channels between the
            convolutions of squeeze-and-excitation; 0 for no squeeze-and-excitation.
    """

    def __init__(
        self, inputs: int, block: _Block, stride: int, squeeze: int, act: Activation, data_format: DataFormat
    ) -> None:
        super().__init__()
        out, expand, kernels, reduce, expansion = block
        width = inputs * expansion
        conv = partial(MixedConvNorm, data_format=data_format)
        self.exp_conv = conv(inputs, width, [1] * expand, act=act) if expansion > 1 else nn.Identity()
        self.conv1 = conv(width, width, [3, 5, 7, 9, 11][:kernels], stride, depthwise=True, act=act)
        excitation = partial(SqueezeExcitation, act=act, gate=F.sigmoid, data_format=data_format)
        self.se = excitation(width, inputs // squeeze) if squeeze else nn.Identity()
        self.conv2 = conv(width, out, [1] * reduce)
        self._shortcut = stride == 1 and inputs == out

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = self.conv2(self.se(self.conv1(self.exp_conv(x))))
        return x + y if self._shortcut else y


def _stage_rules(model: nn.Layer) -> list[Rule]:
    """Returns the rule that splits the last stage into two stages, as timm does."""
    halving = model.depths[-1] // 2

    def start(match: re.Match[str]) -> str:
        stage = int(match[1])
        i = int(match[2]) - 1
        later = stage == len(model.depths) and i >= halving
        return f"blocks.{stage + later}.{i - later * halving}."

    return [(r"^features\.stage(\d)\.unit(\d)\.", start)]


def _reject_tensorflow(_model: nn.Layer, _names: Collection[str], source: str) -> str:
    if not re.search(r"(?<!tf_)mixnet", source):
        return (
            "expected a file name with 'mixnet' but without 'tf_mixnet'; timm's tf_mixnet_* models are not "
            "supported: their parameters have the same names, but padding and epsilon differ"
        )
    return ""


class MixNet(nn.Layer):  # type: ignore[misc]
    """The MixNet network.

    Args:
        stem: Number of channels of the first convolution.
        stages: Properties of the blocks of each stage.
        scale: Factor for all numbers of channels.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^features\.init_block\.conv1\.conv\.": "conv_stem.",
            r"^features\.init_block\.conv1\.bn\.": "bn1.",
            r"^features\.init_block\.conv2\.conv1\.conv\.": "blocks.0.0.conv_dw.",
            r"^features\.init_block\.conv2\.conv1\.bn\.": "blocks.0.0.bn1.",
            r"^features\.init_block\.conv2\.conv2\.conv\.": "blocks.0.0.conv_pw.",
            r"^features\.init_block\.conv2\.conv2\.bn\.": "blocks.0.0.bn2.",
            r"\.se\.conv1\.": ".se.conv_reduce.",
            r"\.se\.conv2\.": ".se.conv_expand.",
            r"\.exp_conv\.": (".conv_pw.", ".bn1."),
            r"\.conv1\.": (".conv_dw.", ".bn2."),
            r"\.conv2\.": (".conv_pwl.", ".bn3."),
            r"^features\.final_block\.": ("conv_head.", "bn2."),
            r"^output\.": "classifier.",
        },
        first_timm=_stage_rules,
        reject_file=_reject_tensorflow,
    )

    def __init__(
        self,
        stem: int,
        stages: tuple[tuple[_Block, ...], ...],
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self.depths = [len(blocks) for blocks in stages]
        channels = round_channels(stem * scale)
        conv = partial(MixedConvNorm, act=F.relu, data_format=data_format)
        first = MixedBlock(channels, (channels, 1, 1, 1, 1), 1, 0, F.relu, data_format)
        start = conv(input_image_channel, channels, [3], 2)
        self.features = nn.Sequential(("init_block", nn.Sequential(("conv1", start), ("conv2", first))))
        for i, (blocks, squeeze) in enumerate(zip(stages, _SQUEEZE, strict=True), 1):
            stage = nn.Sequential()
            halving = len(blocks) // 2 if i == len(stages) else 0
            for j, (out, expand, kernels, reduce, expansion) in enumerate(blocks):
                block = round_channels(out * scale), expand, kernels, reduce, expansion
                stride = 2 if j == halving else 1
                act = F.swish if i > 1 else F.relu
                unit = MixedBlock(channels, block, stride, squeeze, act, data_format)
                stage.add_sublayer(f"unit{j + 1}", unit)
                channels = block[0]
            self.features.add_sublayer(f"stage{i}", stage)
        self.features.add_sublayer("final_block", conv(channels, _FEATURES, [1]))
        self.features.add_sublayer("final_pool", nn.AdaptiveAvgPool2D(1, data_format=data_format))
        self.output = nn.Linear(_FEATURES, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.output(self.features(x).flatten(1))


MixNet_S = partial(MixNet, 16, _SMALL)
MixNet_M = partial(MixNet, 24, _MEDIUM)
MixNet_L = partial(MixNet, 24, _MEDIUM, 1.3)

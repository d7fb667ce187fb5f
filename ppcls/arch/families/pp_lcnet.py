"""PP-LCNet and PP-LCNetV2 (PaddleClas, docs/en/models/PP-LCNet_en.md and PP-LCNetV2_en.md).

The late stages of V2 add up depthwise convolutions with several kernel sizes. For inference, `reparameterize`
merges them into one convolution, as in RepVGG (Ding et al. 2021, https://arxiv.org/abs/2101.03697). The
merged convolution, ``dw_conv``, also exists during training because PaddleClas's checkpoints contain it.
Training does not use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, kaiming_conv, round_channels
from ppcls.arch.layers.mobile import DepthwiseSeparable, LateFeatures
from ppcls.arch.layers.reparameterize import BranchedLayer
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation
from ppcls.arch.public.names import PublicNames

# Blocks of each stage of V1 (table 1): kernel, channels, stride, whether to use squeeze-and-excitation.
_STAGES = {
    "blocks2": ((3, 32, 1, False),),
    "blocks3": ((3, 64, 2, False), (3, 64, 1, False)),
    "blocks4": ((3, 128, 2, False), (3, 128, 1, False)),
    "blocks5": ((3, 256, 2, False), *[(5, 256, 1, False)] * 5),
    "blocks6": ((5, 512, 2, True), (5, 512, 1, True)),
}


class PPLCNet(LateFeatures):
    """The PP-LCNet network.

    Args:
        scale: Factor for all numbers of channels except that of the last convolution.
        dropout_prob: Dropout rate before the classifier.
        stride_list: Strides of the first convolution and of the first block of each later stage.
        use_last_conv: Whether a last convolution computes more features before the classifier.
        timm_variant: Whether the last convolution has a bias, as in timm.
    """

    public_names: ClassVar[PublicNames] = replace(
        LateFeatures.public_names,
        timm={
            r"^conv1\.": ("conv_stem.", "bn1."),
            r"^blocks5\.([2-5])\.": r"blocks.4.{\1-2}.",
            r"^blocks6\.": "blocks.5.",
            r"^blocks([2-5])\.": r"blocks.{\1-2}.",
            r"\.dw_conv\.": (".conv_dw.", ".bn1."),
            r"\.pw_conv\.": (".conv_pw.", ".bn2."),
            r"\.se\.conv1\.": ".se.conv_reduce.",
            r"\.se\.conv2\.": ".se.conv_expand.",
            r"^last_conv\.": "conv_head.",
            r"^fc\.": "classifier.",
        },
        variant="the last convolution of PaddleClas's PPLCNet has no bias",
    )

    def __init__(
        self,
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        dropout_prob: float = 0.2,
        stride_list: Sequence[int | tuple[int, int]] = (2, 2, 2, 2, 2),
        use_last_conv: bool = True,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        conv = partial(kaiming_conv(data_format), act=F.hardswish)
        channels = round_channels(16 * scale)
        self.conv1 = conv(input_image_channel, channels, 3, stride_list[0])
        later = iter(stride_list[1:])
        for name, rows in _STAGES.items():
            blocks = []
            for kernel, width, first_stride, use_se in rows:
                out = round_channels(width * scale)
                stride = next(later) if first_stride == 2 else 1
                se = SqueezeExcitation(channels, channels // 4, data_format=data_format) if use_se else None
                blocks.append(DepthwiseSeparable(channels, out, kernel, stride, conv, se))
                channels = out
            self.add_sublayer(name, nn.Sequential(*blocks))
        head = class_num, F.hardswish, dropout_prob, data_format
        self.add_classifier(channels, *head, bias=timm_variant, last_conv=use_last_conv)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.conv1(x)
        for name in _STAGES:
            x = getattr(self, name)(x)
        return self.classify(x)


PPLCNet_x0_25 = partial(PPLCNet, 0.25)
PPLCNet_x0_35 = partial(PPLCNet, 0.35)
PPLCNet_x0_5 = partial(PPLCNet, 0.5)
PPLCNet_x0_75 = partial(PPLCNet, 0.75)
PPLCNet_x1_0 = partial(PPLCNet, 1.0)
PPLCNet_x1_5 = partial(PPLCNet, 1.5)
PPLCNet_x2_0 = partial(PPLCNet, 2.0)
PPLCNet_x2_5 = partial(PPLCNet, 2.5)


class LateBlock(BranchedLayer):
    """The sum of several depthwise convolutions, followed by one or two 1x1 convolutions.

    Args:
        kernel: Largest kernel of the depthwise convolutions. There is also one convolution for each smaller
            odd kernel.
        stride: Stride of the depthwise convolutions.
        narrow: Whether the block has squeeze-and-excitation and two 1x1 convolutions, with half of the
            channels between them. If False, the block has one 1x1 convolution, and a shortcut if input and
            output have the same shape.
        conv: Constructor of all convolutions.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        narrow: bool,
        conv: partial[ConvNorm],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        sizes = [size for size in range(kernel, 0, -2) if size > 1 or stride == 1]
        self.dw_conv_list = nn.LayerList(
            [conv(in_channels, in_channels, size, stride, in_channels, act=None) for size in sizes]
        )
        self.branches = [*self.dw_conv_list]
        self.dw_conv = nn.Conv2D(in_channels, in_channels, kernel, groups=in_channels)
        for parameter in self.dw_conv.parameters():
            parameter.stop_gradient = True
        self._narrow = narrow
        if narrow:
            self.se = SqueezeExcitation(in_channels, in_channels // 4, F.relu, F.sigmoid, data_format)
            self.pw_conv_1 = conv(in_channels, out_channels // 2, 1)
            self.pw_conv_2 = conv(out_channels // 2, out_channels, 1)
        else:
            self.pw_conv = conv(in_channels, out_channels, 1)
        self._shortcut = not narrow and stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = F.relu(self.add_up(x))
        if self._narrow:
            return self.pw_conv_2(self.pw_conv_1(self.se(y)))
        y = self.pw_conv(y)
        return x + y if self._shortcut else y

    def replace_branches(self, convolution: nn.Conv2D) -> None:
        """Registers ``convolution`` under its name in checkpoints and removes the branches."""
        self.dw_conv = convolution
        del self.dw_conv_list


class PPLCNetV2(LateFeatures):
    """The PP-LCNetV2 network.

    Args:
        scale: Factor for all numbers of channels except that of the last convolution.
        depths: Number of blocks per stage.
    """

    public_names: ClassVar[PublicNames] = replace(
        LateFeatures.public_names,
        timm={
            r"\.pw_conv_(\d)\.": r".pw_conv.{\1-1}.",
            r"\.se\.conv(\d)\.": r".se.fc\1.",
            r"^last_conv\.": "conv_head.",
            r"^fc\.": "classifier.",
        },
    )

    unused: ClassVar[tuple[str, ...]] = (".dw_conv.weight", ".dw_conv.bias")  # parameters of `LateBlock`

    def __init__(
        self,
        scale: float,
        depths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = partial(kaiming_conv(data_format), act=F.relu)
        first = round_channels(32 * scale)
        channels = round_channels(64 * scale)
        self.stem = nn.Sequential(
            conv(input_image_channel, first, 3, 2), DepthwiseSeparable(first, channels, 3, 1, conv)
        )
        early = partial(DepthwiseSeparable, conv=conv)
        late = partial(LateBlock, conv=conv, data_format=data_format)
        kinds: tuple[tuple[partial[nn.Layer], int, int], ...] = (
            (early, 3, 128),
            (early, 3, 256),
            (partial(late, narrow=True), 5, 512),
            (partial(late, narrow=False), 5, 1024),
        )
        self.stages = nn.LayerList()
        for (kind, kernel, width), depth in zip(kinds, depths, strict=True):
            out = round_channels(width * scale)
            inputs = [channels] + [out] * (depth - 1)
            blocks = [kind(channels, out, kernel, 1 if i else 2) for i, channels in enumerate(inputs)]
            self.stages.append(nn.Sequential(*blocks))
            channels = out
        self.add_classifier(channels, class_num, F.relu, 0.2, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.classify(x)


PPLCNetV2_small = partial(PPLCNetV2, 0.75, (2, 2, 4, 2))
PPLCNetV2_base = partial(PPLCNetV2, 1.0, (2, 2, 6, 2))
PPLCNetV2_large = partial(PPLCNetV2, 1.25, (2, 2, 8, 2))

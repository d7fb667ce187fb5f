"""PP-LCNet (Cui et al. 2021, https://arxiv.org/abs/2109.15099), parameter for parameter as in PaddleClas.

Parameters, in millions: PPLCNet at x0_25 1.5, x0_35 1.6, x0_5 1.9, x0_75 2.4, x1_0 3.0, x1_5 4.5,
x2_0 6.5, x2_5 9.0.
"""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.conv_norm import ConvNorm, DataFormat, round_channels
from ppcls.arch.depthwise_separable import DepthwiseSeparable
from ppcls.arch.late_features import LateFeatures
from ppcls.arch.squeeze_excitation import SqueezeExcitation

# Table 1, of each stage's blocks: kernel, channels, stride, squeeze-and-excitation.
_STAGES = {
    "blocks2": ((3, 32, 1, False),),
    "blocks3": ((3, 64, 2, False), (3, 64, 1, False)),
    "blocks4": ((3, 128, 2, False), (3, 128, 1, False)),
    "blocks5": ((3, 256, 2, False), *[(5, 256, 1, False)] * 5),
    "blocks6": ((5, 512, 2, True), (5, 512, 1, True)),
}


class PPLCNet(LateFeatures):
    """A PP-LCNet.

    Args:
        scale: Of all channels but the last ones.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
        dropout_prob: Of the features before the classifier.
    """

    def __init__(
        self,
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        dropout_prob: float = 0.2,
    ) -> None:
        super().__init__()
        conv = partial(
            ConvNorm,
            act=F.hardswish,
            data_format=data_format,
            initializer=nn.initializer.KaimingNormal(),
            decay=False,
        )
        channels = round_channels(16 * scale)
        self.conv1 = conv(input_image_channel, channels, 3, 2)
        for name, rows in _STAGES.items():
            blocks = []
            for kernel, width, stride, weighed in rows:
                out = round_channels(width * scale)
                weigh = (
                    SqueezeExcitation(channels, channels // 4, data_format=data_format) if weighed else None
                )
                blocks.append(DepthwiseSeparable(channels, out, kernel, stride, conv, weigh))
                channels = out
            self.add_sublayer(name, nn.Sequential(*blocks))
        self.add_classifier(channels, class_num, F.hardswish, dropout_prob, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
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

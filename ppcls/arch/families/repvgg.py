"""RepVGG (Ding et al. 2021, https://arxiv.org/abs/2101.03697).

During training, a block is the sum of a 3x3 convolution, a 1x1 convolution and, if input and output have the
same shape, the input. For inference, `ppcls.arch.layers.reparameterize` merges them into one 3x3 convolution.
The network D2se, which was published after the paper, has squeeze-and-excitation in each block.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, batch_norm
from ppcls.arch.layers.reparameterize import BranchedLayer
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation
from ppcls.arch.public.names import PublicNames

_WIDTHS = (64, 128, 256, 512)  # number of channels of the stages at scale 1


class RepVGGSqueezeExcitation(SqueezeExcitation):
    """A `SqueezeExcitation` whose parameters have the names of this family."""

    names = ("down", "up")


class RepVGGBlock(BranchedLayer):
    """The sum of the branches, followed by optional squeeze-and-excitation and ReLU (figure 2)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        groups: int,
        use_se: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.rbr_dense = ConvNorm(in_channels, out_channels, 3, stride, groups, data_format=data_format)
        self.rbr_1x1 = ConvNorm(in_channels, out_channels, 1, stride, groups, data_format=data_format)
        self.branches = [self.rbr_dense, self.rbr_1x1]
        if stride == 1 and in_channels == out_channels:
            self.rbr_identity = batch_norm(in_channels, data_format)
            self.branches.append(self.rbr_identity)
        self.se = (
            RepVGGSqueezeExcitation(out_channels, out_channels // 16, gate=F.sigmoid, data_format=data_format)
            if use_se
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        return F.relu(self.se(self.add_up(x)))

    def replace_branches(self, convolution: nn.Conv2D) -> None:
        """Registers ``convolution`` under its name in checkpoints and removes the branches."""
        self.rbr_reparam = convolution
        for name in ("rbr_dense", "rbr_1x1", "rbr_identity"):
            if hasattr(self, name):
                delattr(self, name)


class RepVGG(nn.Layer):  # type: ignore[misc]
    """The RepVGG network.

    Args:
        depths: Number of blocks per stage.
        scale: Factor for the number of channels of the first three stages.
        last_scale: Factor for the number of channels of the last stage.
        groups: Number of groups of the convolutions in every second block.
        use_se: Whether blocks use squeeze-and-excitation.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^stage0\.": "stem.",
            r"^stage(\d)\.": r"stages.{\1-1}.",
            r"\.rbr_dense\.": ".conv_kxk.",
            r"\.rbr_1x1\.": ".conv_1x1.",
            r"\.rbr_identity\.": ".identity.",
            r"\.se\.down\.": ".attn.fc1.",
            r"\.se\.up\.": ".attn.fc2.",
            r"^linear\.": "head.fc.",
        },
    )

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        scale: float,
        last_scale: float,
        groups: int = 1,
        use_se: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        channels = min(_WIDTHS[0], int(_WIDTHS[0] * scale))
        self.stage0 = RepVGGBlock(input_image_channel, channels, 2, 1, use_se, data_format)
        number = 0  # number of the block in the network
        for stage, (depth, width) in enumerate(zip(depths, _WIDTHS, strict=True), 1):
            out = int(width * (last_scale if stage == len(depths) else scale))
            blocks = []
            for i in range(depth):
                number += 1
                # Section 4.1: the third, fifth and so on layers of the network are grouped; the stem is the
                # first.
                shared = 1 if number % 2 else groups
                blocks.append(RepVGGBlock(channels, out, 1 if i else 2, shared, use_se, data_format))
                channels = out
            self.add_sublayer(f"stage{stage}", nn.Sequential(*blocks))
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.linear = nn.Linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.stage4(self.stage3(self.stage2(self.stage1(self.stage0(x)))))
        return self.linear(self.avg_pool(x).flatten(1))


_A = (2, 4, 14, 1)
_B = (4, 6, 16, 1)
_D = (8, 14, 24, 1)

# The numbers are from table 2 and section 4.1 of the paper.
RepVGG_A0 = partial(RepVGG, _A, 0.75, 2.5)
RepVGG_A1 = partial(RepVGG, _A, 1.0, 2.5)
RepVGG_A2 = partial(RepVGG, _A, 1.5, 2.75)
RepVGG_B0 = partial(RepVGG, _B, 1.0, 2.5)
RepVGG_B1 = partial(RepVGG, _B, 2.0, 4.0)
RepVGG_B1g2 = partial(RepVGG, _B, 2.0, 4.0, 2)
RepVGG_B1g4 = partial(RepVGG, _B, 2.0, 4.0, 4)
RepVGG_B2 = partial(RepVGG, _B, 2.5, 5.0)
RepVGG_B2g4 = partial(RepVGG, _B, 2.5, 5.0, 4)
RepVGG_B3 = partial(RepVGG, _B, 3.0, 5.0)
RepVGG_B3g4 = partial(RepVGG, _B, 3.0, 5.0, 4)
RepVGG_D2se = partial(RepVGG, _D, 2.5, 5.0, use_se=True)

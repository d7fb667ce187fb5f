"""RedNet (Li et al. 2021, https://arxiv.org/abs/2103.06255), a ResNet with involutions.

Images may have any size. PaddleClas's networks accept only multiples of 32.
"""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm

# an involution's reduction between its convolutions, and channels per group
_REDUCTION = 4
_GROUP = 16
_WIDTHS = (64, 128, 256, 512)


def _conv(in_channels: int, out: int, kernel: int, stride: int, data_format: DataFormat) -> nn.Conv2D:
    padding = kernel // 2
    return nn.Conv2D(
        in_channels, out, kernel, stride, padding=padding, bias_attr=False, data_format=data_format
    )


def _conv_norm_relu(
    in_channels: int, out: int, kernel: int, stride: int, data_format: DataFormat
) -> nn.Sequential:
    return nn.Sequential(
        ("conv", _conv(in_channels, out, kernel, stride, data_format)),
        ("bn", batch_norm(out, data_format)),
        ("activate", nn.ReLU()),
    )


class Involution(nn.Layer):  # type: ignore[misc]
    """A convolution that computes its kernel for each pixel. Groups of 16 channels share the kernel."""

    def __init__(self, channels: int, kernel: int, stride: int, data_format: DataFormat) -> None:
        super().__init__()
        inner = channels // _REDUCTION
        self.conv1 = _conv_norm_relu(channels, inner, 1, 1, data_format)
        weights = nn.Conv2D(inner, kernel**2 * channels // _GROUP, 1, data_format=data_format)
        self.conv2 = nn.Sequential(("conv", weights))
        pool = nn.AvgPool2D(stride, stride, ceil_mode=True, data_format=data_format)
        self.avgpool = pool if stride > 1 else nn.Identity()
        self._channels = channels
        self._kernel = kernel
        self._stride = stride
        self._last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C, H/stride, W/stride]."""
        weight = self.conv2(self.conv1(self.avgpool(x)))
        if self._last:
            # `F.unfold` supports only NCHW.
            weight = weight.transpose([0, 3, 1, 2])
            x = x.transpose([0, 3, 1, 2])
        height, width = weight.shape[2:]
        groups = self._channels // _GROUP
        area = self._kernel**2
        weight = weight.reshape([-1, groups, 1, area, height, width])
        x = F.unfold(x, self._kernel, self._stride, self._kernel // 2)
        x = (weight * x.reshape([-1, groups, _GROUP, area, height, width])).sum(3)
        x = x.reshape([-1, self._channels, height, width])
        return x.transpose([0, 2, 3, 1]) if self._last else x


class InvolutionBlock(nn.Layer):  # type: ignore[misc]
    """A ResNet bottleneck with a 7x7 involution in the middle."""

    def __init__(
        self, in_channels: int, width: int, stride: int, project: bool, data_format: DataFormat
    ) -> None:
        super().__init__()
        out = 4 * width
        norm = partial(batch_norm, data_format=data_format)
        self.conv1 = _conv(in_channels, width, 1, 1, data_format)
        self.bn1 = norm(width)
        self.conv2 = Involution(width, 7, stride, data_format)
        self.bn2 = norm(width)
        self.conv3 = _conv(width, out, 1, 1, data_format)
        self.bn3 = norm(out)
        shortcut = nn.Sequential(_conv(in_channels, out, 1, stride, data_format), norm(out))
        self.downsample = shortcut if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class RedNet(nn.Layer):  # type: ignore[misc]
    """The RedNet network.

    Args:
        depths: Number of blocks per stage.
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv_norm_relu(input_image_channel, 32, 3, 2, data_format),
            Involution(32, 3, 1, data_format),
            batch_norm(32, data_format),
            nn.ReLU(),
            _conv_norm_relu(32, 64, 3, 1, data_format),
        )
        self.maxpool = nn.MaxPool2D(3, 2, 1, data_format=data_format)
        channels = 64
        for number, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True), start=1):
            blocks = []
            for i in range(depth):
                stride = 2 if i == 0 and number > 1 else 1
                blocks.append(InvolutionBlock(channels, width, stride, i == 0, data_format))
                channels = 4 * width
            self.add_sublayer(f"layer{number}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.layer2(self.layer1(self.maxpool(self.stem(x))))
        return self.fc(self.avgpool(self.layer4(self.layer3(x))).flatten(1))


RedNet26 = partial(RedNet, (1, 2, 4, 1))
RedNet38 = partial(RedNet, (2, 3, 5, 2))
RedNet50 = partial(RedNet, (3, 4, 6, 3))
RedNet101 = partial(RedNet, (3, 4, 23, 3))
RedNet152 = partial(RedNet, (3, 8, 36, 3))

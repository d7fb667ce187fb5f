"""AlexNet (Krizhevsky et al. 2012) in the version of "One weird trick" (https://arxiv.org/abs/1404.5997)."""

from __future__ import annotations

from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.public.names import PublicNames

# Columns: name, output channels, kernel, stride, padding, whether max pooling follows.
_CONVOLUTIONS = (
    ("_conv1", 64, 11, 4, 2, True),
    ("_conv2", 192, 5, 1, 2, True),
    ("_conv3", 384, 3, 1, 1, False),
    ("_conv4", 256, 3, 1, 1, False),
    ("_conv5", 256, 3, 1, 1, True),
)
_SIDE = 6  # of the last feature map for images of 224 x 224, for which _fc6 is made
_HIDDEN = 4096


def _uniform(fan_in: int) -> paddle.ParamAttr:
    bound = fan_in**-0.5
    return paddle.ParamAttr(initializer=nn.initializer.Uniform(-bound, bound))


class PooledConvolution(nn.Layer):  # type: ignore[misc]
    """A convolution, named ``_conv`` in checkpoints, with ReLU and 3x3 max pooling of stride 2."""

    def __init__(self, convolution: nn.Conv2D, data_format: DataFormat) -> None:
        super().__init__()
        self._conv = convolution
        self._pool = nn.MaxPool2D(3, stride=2, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H', W']."""
        return self._pool(F.relu(self._conv(x)))


def _dropout_factors(model: nn.Layer) -> dict[str, float]:
    # PyTorch's weights expect its dropout, which scales in training; see `mode` below.
    return dict.fromkeys(("_fc6.weight", "_fc7.weight"), 1 / (1 - model.drop.p))


class AlexNet(nn.Layer):  # type: ignore[misc]
    """The AlexNet network, for images of 223 to 254 pixels per side."""

    public_names: ClassVar[PublicNames] = PublicNames(
        torchvision={
            r"^_conv(\d)\.(?:_conv\.)?": r"features.{\1:- 0 3 6 8 10}.",
            r"^_fc6\.": "classifier.1.",
            r"^_fc7\.": "classifier.4.",
            r"^_fc8\.": "classifier.6.",
        },
        factors=_dropout_factors,
    )

    def __init__(
        self, class_num: int = 1000, data_format: DataFormat = "NCHW", input_image_channel: int = 3
    ) -> None:
        super().__init__()
        channels = input_image_channel
        for name, width, kernel, stride, padding, pooled in _CONVOLUTIONS:
            fan_in = channels * kernel**2
            convolution = nn.Conv2D(
                channels,
                width,
                kernel,
                stride,
                padding,
                weight_attr=_uniform(fan_in),
                bias_attr=_uniform(fan_in),
                data_format=data_format,
            )
            layer = PooledConvolution(convolution, data_format) if pooled else convolution
            self.add_sublayer(name, layer)
            channels = width
        inputs = channels * _SIDE**2
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self.drop = nn.Dropout(0.5, mode="downscale_in_infer")
        for name, size, out in (
            ("_fc6", inputs, _HIDDEN),
            ("_fc7", _HIDDEN, _HIDDEN),
            ("_fc8", _HIDDEN, class_num),
        ):
            # As in PaddleClas, all three linear layers use the bound of the first one.
            linear = nn.Linear(size, out, weight_attr=_uniform(inputs), bias_attr=_uniform(inputs))
            self.add_sublayer(name, linear)
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for name, *_, pooled in _CONVOLUTIONS:
            x = getattr(self, name)(x)
            x = x if pooled else F.relu(x)
        if self._channels_last:  # the weights of _fc6 expect features in the order of NCHW
            x = x.transpose([0, 3, 1, 2])
        x = F.relu(self._fc6(self.drop(x.flatten(1))))
        return self._fc8(F.relu(self._fc7(self.drop(x))))

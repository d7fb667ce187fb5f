"""MobileNetV3's way to end a network (Howard et al. 2019, https://arxiv.org/abs/1905.02244, figure 5)."""

from __future__ import annotations

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import Activation, DataFormat

_FEATURES = 1280


class LateFeatures(nn.Layer):  # type: ignore[misc]
    """A network whose last features are made behind the pooling, where they cost one pixel's work."""

    def add_classifier(
        self, channels: int, class_num: int, act: Activation, dropout_prob: float, data_format: DataFormat
    ) -> None:
        """Adds what `classify` does.

        Args:
            channels: Channels of its input.
            class_num: Number of classes.
            act: After the 1x1 convolution that makes the features.
            dropout_prob: Of the features.
            data_format: Layout of its input.
        """
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.last_conv = nn.Conv2D(channels, _FEATURES, 1, bias_attr=False, data_format=data_format)
        self._last_act = act
        self.dropout = nn.Dropout(dropout_prob, mode="downscale_in_infer")
        self.fc = nn.Linear(_FEATURES, class_num)

    def classify(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
        x = self._last_act(self.last_conv(self.avg_pool(x)))
        return self.fc(self.dropout(x).flatten(1))

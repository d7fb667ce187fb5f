"""ML-Decoder, a classification head with attention (Ridnik et al. 2021, https://arxiv.org/abs/2111.12933)."""

from __future__ import annotations

import math
from typing import Any, Literal

from paddle import Tensor, nn
from paddle.nn import functional as F
from paddle.nn.initializer import Constant, Normal, XavierNormal

from ppcls.errors import UserError


class _NoSelfAttention(nn.Layer):  # type: ignore[misc]
    """A layer that returns the queries unchanged, because the paper's decoder has no self-attention."""

    def forward(self, query: Tensor, *_others: Tensor | None) -> Tensor:
        """Returns the queries [B, queries, width]."""
        return query


class MLDecoderHead(nn.Layer):  # type: ignore[misc]
    """A head in which fixed random queries attend to all positions of a feature map.

    Each query computes the logits of some classes.

    Args:
        channels: Number of channels of the feature map.
        class_num: Number of classes.
        queries: Number of queries; if it exceeds ``class_num``, one query per class is used.
        width: Width of the queries and of the projected features.
        heads: Number of attention heads.
        hidden: Width of the hidden layer after the attention.
        dropout: Dropout rate in the attention and the hidden layer.
        data_format: Layout of the feature map before flattening.
    """

    def __init__(
        self,
        channels: int,
        class_num: int,
        queries: int = 80,
        width: int = 768,
        heads: int = 8,
        hidden: int = 2048,
        dropout: float = 0.1,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
    ) -> None:
        super().__init__()
        self._channels = channels
        self._classes = class_num
        self._data_format = data_format
        queries = min(queries, class_num)
        self.input_proj = nn.Conv2D(channels, width, 1)
        self.query_pos_embed = nn.Embedding(queries, width, weight_attr=Normal())
        self.query_pos_embed.weight.stop_gradient = True
        decoder = nn.TransformerDecoderLayer(
            width, heads, hidden, dropout, attn_dropout=dropout, act_dropout=dropout
        )
        decoder.self_attn = _NoSelfAttention()
        self.decoder = nn.TransformerDecoder(decoder, 1)
        outputs = queries * math.ceil(class_num / queries)
        self.group_conv = nn.Conv2D(
            queries * width, outputs, 1, groups=queries, weight_attr=XavierNormal(), bias_attr=Constant(0.0)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps a feature map to logits [B, class_num].

        The feature map has four axes in ``data_format``, or is flattened to [B, channels * H * W].
        """
        if self._data_format == "NHWC":
            x = x.reshape([x.shape[0], -1, self._channels]).transpose([0, 2, 1])
        x = F.relu(self.input_proj(x.reshape([x.shape[0], self._channels, -1, 1])))
        features = x.flatten(2).transpose([0, 2, 1])
        queries = self.query_pos_embed.weight.unsqueeze(0).expand([x.shape[0], -1, -1])
        attended = self.decoder(queries, features)
        logits = self.group_conv(attended.flatten(1).unsqueeze([2, 3]))
        return logits.flatten(1)[:, : self._classes]


def replace_head(
    model: nn.Layer,
    decoder: dict[str, Any],
    class_num: int,
    data_format: Literal["NCHW", "NHWC"],
    layers: tuple[str, tuple[str, ...]] = ("fc", ("avg_pool", "flatten")),
) -> None:
    """Replaces the pooling and the last linear layer of a classifier by an `MLDecoderHead`, in place.

    Args:
        model: The classifier. Its new attribute ``new_head`` is the name of the replaced layer.
        decoder: Further arguments of `MLDecoderHead`.
        class_num: Number of classes.
        data_format: Layout of the feature maps in the model.
        layers: Name of the linear layer, and names of the layers to remove. The first layer to remove must
            exist.

    Raises:
        UserError: The model does not have these layers.
    """
    name, removed = layers
    linear = getattr(model, name, None)
    if not isinstance(linear, nn.Linear) or (removed and not hasattr(model, removed[0])):
        raise UserError(
            f"Arch.ml_decoder: {type(model).__name__} has no linear layer {name!r}"
            + (f" after a layer {removed[0]!r}" if removed else "")
            + "; set replace_layer and remove_layers to the names of layers, or choose another architecture"
        )
    for layer in removed:
        if hasattr(model, layer):
            setattr(model, layer, nn.Identity())
    head = MLDecoderHead(int(linear.weight.shape[0]), class_num, data_format=data_format, **decoder)
    setattr(model, name, head)
    model.new_head = name

"""Embedding models: a backbone, a neck and a head."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F
from paddle.nn.initializer import XavierNormal

from ppcls.outputs import LOGITS

FEATURES, BACKBONE = "features", "backbone"


class EmbeddingLinear(nn.Layer):  # type: ignore[misc]
    """A linear layer with PaddleClas's parameter name, ``fc``."""

    def __init__(self, size: int, out: int, weight_attr: Any = None, bias_attr: Any = None) -> None:
        super().__init__()
        weight_attr = weight_attr or paddle.ParamAttr(initializer=XavierNormal())
        self.fc = nn.Linear(size, out, weight_attr=weight_attr, bias_attr=bias_attr)

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to [B, out]."""
        return self.fc(embedding)


class EmbeddingConvolution(nn.Layer):  # type: ignore[misc]
    """A linear layer with the parameter names of PaddleClas's VehicleNeck, ``conv``."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2D(size, out, 1)

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to [B, out]."""
        return self.conv(embedding.unsqueeze([2, 3])).flatten(1)


class EmbeddingNorm(nn.Layer):  # type: ignore[misc]
    """BatchNorm of embeddings with PaddleClas's parameter name, ``feat_bn``."""

    def __init__(self, size: int, _out: int, weight_attr: Any = None, bias_attr: Any = None) -> None:
        super().__init__()
        self.feat_bn = nn.BatchNorm1D(size, weight_attr=weight_attr, bias_attr=bias_attr)

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to the same shape."""
        return self.feat_bn(embedding)


class CosineHead(nn.Layer):  # type: ignore[misc]
    """Cosines between embeddings and learned directions of classes, in float32.

    Attributes:
        weight: Directions [size, classes], one per column, as in PaddleClas's margin heads.
    """

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([size, classes], default_initializer=XavierNormal())

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to [B, classes], -1..1."""
        with paddle.amp.auto_cast(enable=False):
            unit = F.normalize(embedding.astype("float32"), axis=1)
            return unit @ F.normalize(self.weight.astype("float32"), axis=0)


class EmbeddingNetwork(nn.Layer):  # type: ignore[misc]
    """Returns embeddings, and logits or cosines if it has a head.

    Args:
        backbone: Layer from images to [B, C].
        neck: Layer from there to the embedding; None for none.
        head: Layer from the embedding to classes; None for none.
        size: Size of an embedding.
    """

    def __init__(self, backbone: nn.Layer, neck: nn.Layer | None, head: nn.Layer | None, size: int) -> None:
        super().__init__()
        self.size = size
        self.backbone, self.neck, self.head = backbone, neck, head

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Maps images to ``backbone`` and ``features``, [B, D] each, and ``logits`` [B, C]."""
        pooled = self.backbone(image)
        features = pooled if self.neck is None else self.neck(pooled)
        outputs = {BACKBONE: pooled, FEATURES: features}
        if self.head is not None:
            outputs[LOGITS] = self.head(features)
        return outputs


def remove_classifier(model: nn.Layer) -> int:
    """Replaces the last linear layer of a classifier by the identity.

    Returns:
        The number of its input features.

    Raises:
        ValueError: The model has no linear layer.
    """
    linear = [name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(f"{type(model).__name__} does not end in a linear layer")
    *path, last = linear[-1].split(".")
    parent = model
    for part in path:
        parent = getattr(parent, part)
    size = int(getattr(parent, last).weight.shape[0])
    setattr(parent, last, nn.Identity())
    return size

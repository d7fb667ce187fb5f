"""Embedding models, which consist of a backbone, a neck and a head.

Some layers only contain one other layer, so that its parameters have PaddleClas's names in checkpoints.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F
from paddle.nn.initializer import XavierNormal

from ppcls.outputs import BACKBONE, FEATURES, LOGITS


class EmbeddingLinear(nn.Layer):  # type: ignore[misc]
    """A linear layer that is named ``fc`` in checkpoints, as in PaddleClas."""

    def __init__(self, size: int, out: int, weight_attr: Any = None, bias_attr: Any = None) -> None:
        super().__init__()
        weight_attr = weight_attr or paddle.ParamAttr(initializer=XavierNormal())
        self.fc = nn.Linear(size, out, weight_attr=weight_attr, bias_attr=bias_attr)

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to [B, out]."""
        return self.fc(embedding)


class EmbeddingConvolution(nn.Layer):  # type: ignore[misc]
    """A linear layer as a 1x1 convolution named ``conv`` in checkpoints, as in PaddleClas's VehicleNeck."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2D(size, out, 1)

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to [B, out]."""
        return self.conv(embedding.unsqueeze([2, 3])).flatten(1)


class EmbeddingNorm(nn.Layer):  # type: ignore[misc]
    """BatchNorm of embeddings that is named ``feat_bn`` in checkpoints, as in PaddleClas."""

    def __init__(self, size: int, weight_attr: Any = None, bias_attr: Any = None) -> None:
        super().__init__()
        # The bias is trained. PaddleClas's bnneck.py prepares a bias that is not, but then replaces it.
        self.feat_bn = nn.BatchNorm1D(size, weight_attr=weight_attr, bias_attr=bias_attr)

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps embeddings [B, size] to the same shape."""
        return self.feat_bn(embedding)


class CosineHead(nn.Layer):  # type: ignore[misc]
    """A head that returns the cosines between embeddings and one learned direction per class, in float32.

    Attributes:
        weight: Directions [size, classes], one per column, as in PaddleClas's margin heads.
    """

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([size, classes], default_initializer=XavierNormal())

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps embeddings [B, size] to cosines [B, classes], -1..1."""
        # Cosines near 1 are 2^-8 apart in bfloat16. A scale of 64 makes this a quarter of a logit.
        with paddle.amp.auto_cast(enable=False):
            unit = F.normalize(embedding.astype("float32"), axis=1)
            return unit @ F.normalize(self.weight.astype("float32"), axis=0)


class EmbeddingNetwork(nn.Layer):  # type: ignore[misc]
    """A network that returns embeddings, and the logits or cosines of its head if it has one.

    Args:
        backbone: Layer that maps images to features [B, C].
        neck: Layer that maps features to embeddings [B, size]; None if the features are the embeddings.
        head: Layer that maps embeddings to one value per class; None if the network has no head.
        size: Size of an embedding.

    Attributes:
        losses: Names of sublayers that are losses with parameters. In training, `forward` returns zeros [B]
            for each loss, because ranks exchange only the gradients of parameters that the forward pass uses.
    """

    losses: tuple[str, ...] = ()

    def __init__(self, backbone: nn.Layer, neck: nn.Layer | None, head: nn.Layer | None, size: int) -> None:
        super().__init__()
        self.size = size
        self.backbone = backbone
        self.neck = neck
        self.head = head

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Maps images to a dictionary of tensors.

        The keys are ``backbone`` [B, C], ``features`` [B, size] and, with a head, ``logits`` [B, classes]. In
        training, each of ``losses`` is also a key.
        """
        pooled = self.backbone(image)
        features = pooled if self.neck is None else self.neck(pooled)
        outputs = {BACKBONE: pooled, FEATURES: features}
        if self.head is not None:
            outputs[LOGITS] = self.head(features)
        for loss in self.losses if self.training else ():
            outputs[loss] = getattr(self, loss).zeros(len(features))
        return outputs


def remove_classifier(model: nn.Layer) -> int:
    """Replaces the last linear layer of a classifier by the identity.

    Returns:
        Number of input features of the linear layer.

    Raises:
        ValueError: The model has no linear layer.
    """
    linear = [name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(model).__name__} does not end in a linear layer; choose another architecture as backbone"
        )
    *path, last = linear[-1].split(".")
    parent = model
    for part in path:
        parent = getattr(parent, part)
    size = int(getattr(parent, last).weight.shape[0])
    setattr(parent, last, nn.Identity())
    return size

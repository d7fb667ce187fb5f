"""A backbone, a neck and a head: embeddings, and what they are trained by."""

from __future__ import annotations

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F
from paddle.nn.initializer import XavierNormal

from ppcls.outputs import LOGITS

FEATURES, BACKBONE = "features", "backbone"


class EmbeddingLinear(nn.Layer):  # type: ignore[misc]
    """A linear layer under PaddleClas's name of it, ``fc``."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.fc = nn.Linear(size, out, weight_attr=paddle.ParamAttr(initializer=XavierNormal()))

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to [B, out]."""
        return self.fc(embedding)


class CosineHead(nn.Layer):  # type: ignore[misc]
    """CosineHead between embeddings and the directions of classes, in float32.

    Attributes:
        weight: [size, classes], a direction a column, as in PaddleClas's margin heads.
    """

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([size, classes], default_initializer=XavierNormal())

    def forward(self, embedding: Tensor) -> Tensor:
        """Maps [B, size] to [B, classes], -1..1."""
        with paddle.amp.auto_cast(enable=False):
            own = F.normalize(embedding.astype("float32"), axis=1)
            return own @ F.normalize(self.weight.astype("float32"), axis=0)


class EmbeddingNetwork(nn.Layer):  # type: ignore[misc]
    """Gives embeddings, and logits or cosines where it has a head.

    Args:
        backbone: Maps images to [B, C].
        neck: From there to the embedding; None for none.
        head: From the embedding to classes; None for none.
        size: Numbers of an embedding.
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
    """Takes the last linear layer off a classifier, which then gives what went into that.

    Returns:
        How many numbers these are.

    Raises:
        ValueError: It has no linear layer.
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

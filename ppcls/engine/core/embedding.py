"""The model of ``Arch.name: RecModel``, and how it is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from paddle import nn

from ppcls.arch import embedding
from ppcls.arch.embedding import CosineHead, remove_classifier
from ppcls.config.objectives.embedding import HeadSpec, MarginHead, RecModel
from ppcls.config.schema import Config
from ppcls.engine.core.distillation import build_arch
from ppcls.errors import UserError
from ppcls.loss.build import Criterion, build_criterion
from ppcls.outputs import zero_loss
from ppcls.weights.files import read_weights, start_from


def build_embedding(arch: RecModel, pretrained: bool) -> nn.Layer:
    """Builds the model with fresh weights; with ``pretrained`` its backbone has those of its file, if any.

    Raises:
        UserError: These can't be read or are another model's, or a size is not what comes in.
    """
    backbone = build_arch(arch.Backbone)
    if pretrained and (source := arch.Backbone.weights):
        start_from(backbone, read_weights(Path(source)), source)
    try:
        size = remove_classifier(backbone)
    except ValueError as error:
        raise UserError(f"Arch.Backbone: {error}; take another") from None
    neck = head = None
    if arch.Neck is not None:
        neck, size = _layer("Neck", arch.Neck, size), arch.Neck.class_num
    if arch.Head is not None:
        head = _layer("Head", arch.Head, size)
    return embedding.EmbeddingNetwork(backbone, neck, head, size)


def _layer(name: str, spec: HeadSpec, size: int) -> nn.Layer:
    if spec.embedding_size != size:
        raise UserError(f"Arch.{name}.embedding_size: {size} numbers come in, got {spec.embedding_size}")
    return (CosineHead if isinstance(spec, MarginHead) else embedding.EmbeddingLinear)(size, spec.class_num)


def evaluation_criterion(config: Config, positives: NDArray[Any] | None) -> Criterion:
    """Returns the loss of an evaluation.

    Identities to retrieve are no classes of the model, so of losses only those of identities are left;
    without any it is 0.
    """
    losses, margin = config.Loss.Eval, config.Arch.margin
    if config.Global.eval_mode == "classification":
        return build_criterion(losses, positives, margin)
    losses = tuple(spec for spec in losses if spec.on_embeddings)
    return build_criterion(losses) if losses else lambda outputs, _label: zero_loss(outputs)

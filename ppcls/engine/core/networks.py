"""Builds the network of a config: a classifier, a network for embeddings, or a network for distillation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.distillation import DistillationNetwork, attach_to_student
from ppcls.arch.distillation_model import DistillationModel
from ppcls.arch.embedding import EmbeddingNetwork, remove_classifier
from ppcls.arch.heads import NeckOrHead
from ppcls.arch.layers.feature_extractor import FeatureExtractor, FeatureLayerError
from ppcls.arch.layers.ml_decoder import replace_head
from ppcls.arch.rec_model import RecModel
from ppcls.arch.section import Arch
from ppcls.engine.core.precision import build_precision
from ppcls.engine.core.settings import AMP
from ppcls.errors import UserError
from ppcls.loss.base import Loss, learned_losses
from ppcls.weights.files import Arrays, fill_model, read_weights, start_from

if TYPE_CHECKING:
    from ppcls.config.schema import Config

AnyArch = Arch | RecModel | DistillationModel
Losses = Sequence[Loss]


def build_arch(arch: Arch) -> nn.Layer:
    """Builds the model of one ``Arch`` section, with random weights."""
    model = build_model(arch.name, arch.class_num, arch.data_format, arch.input_image_channel, **arch.options)
    if (head := arch.ml_decoder) is not None:
        decoder = {
            **{"queries": head.query_num, "width": head.embed_dim, "heads": head.num_heads},
            **{"hidden": head.mlp_hidden_dim, "dropout": head.dropout},
        }
        layers = head.replace_layer, head.remove_layers
        replace_head(model, decoder, arch.class_num, arch.data_format, layers)
    return model


def build_network(arch: AnyArch, pretrained: bool = False) -> nn.Layer:
    """Builds the model that is evaluated and exported, with random weights.

    Args:
        pretrained: Whether to load the weights that the config sets for the backbone of a `RecModel`.
    """
    section = arch.inferred
    return _build_embedding(section, pretrained) if isinstance(section, RecModel) else build_arch(section)


def _build_embedding(arch: RecModel, pretrained: bool) -> nn.Layer:
    """Builds a backbone with its neck and head."""
    backbone = build_arch(arch.Backbone)
    if pretrained and (source := arch.Backbone.weights):
        start_from(backbone, read_weights(Path(source)), source)
    if arch.BackboneStopLayer.name == "none":
        size = arch.Backbone.class_num
    else:
        try:
            size = remove_classifier(backbone)
        except ValueError as error:
            raise UserError(f"Arch.Backbone: {error}; choose another architecture") from None
    neck = None
    head = None
    if arch.Neck is not None:
        neck = _build_head("Neck", arch.Neck, size)
        size = arch.Neck.output_size or size
    if arch.Head is not None:
        head = _build_head("Head", arch.Head, size)
    return EmbeddingNetwork(backbone, neck, head, size)


def _build_head(name: str, section: NeckOrHead, size: int) -> nn.Layer:
    """Builds a neck or head, and checks that it accepts vectors of length ``size``."""
    if section.input_size not in (None, size):
        raise UserError(
            f"Arch.{name}.{section.input_key}: expected {size}, the size of the layer's input, got "
            f"{section.input_size}"
        )
    return section.build()


def join_beside(student: nn.Layer, arch: AnyArch, losses: Losses) -> None:
    """Adds trainable losses and, in distillation, peers to a model as sublayers.

    The optimizer then trains them together with the model.

    Raises:
        UserError: Weights cannot be read or do not fit, or the student already has a layer of the same name.
    """
    beside: dict[str, nn.Layer] = {}
    if isinstance(arch, DistillationModel):
        for name in arch.peers:
            peer = build_network(arch.members[name], pretrained=True)
            source = arch.initial_weights(name)
            if source is not None:
                start_from(peer, read_weights(Path(source)), source)
            beside[name] = peer
    learned = learned_losses(losses)
    for name, loss in learned.items():
        beside[name] = loss.build_layer(arch.model_facts)
    for name, layer in beside.items():
        try:
            attach_to_student(student, name, layer)
        except ValueError as error:
            raise UserError(f"Arch.models: {error}") from None
    # The network for distillation calls the layers of its losses. Other losses need the embedding network to
    # use their parameters in its forward pass; see `EmbeddingNetwork.losses`.
    if alone := [name for name, loss in learned.items() if not loss.multi_model]:
        student.losses = (*student.losses, *alone)


def build_distilling(
    student: nn.Layer, arch: DistillationModel, losses: Losses, amp: AMP | None, device: Literal["cpu", "gpu"]
) -> nn.Layer:
    """Returns the network that training calls: the student, its peers and its teachers.

    Builds the teachers and loads their weights.

    Raises:
        UserError: Weights cannot be read or do not fit, or a loss uses a layer that does not exist.
    """
    models = {arch.student: student, **{name: getattr(student, name) for name in arch.peers}}
    # Teachers run in evaluation mode, but in the precision of training.
    amp = amp.model_copy(update={"use_fp16_test": True}) if amp is not None else None
    contexts = {}
    for name in arch.frozen:
        models[name], source = build_network(arch.members[name]), arch.initial_weights(name)
        assert source is not None  # checked by the config
        fill_model(models[name], read_weights(Path(source)), source)
        precision = build_precision(amp, device)
        precision.prepare(models[name], None)
        contexts[name] = precision.evaluation
    layers = _loss_layers(arch, losses)
    extractors: dict[str, FeatureExtractor] = {}
    for name, model in models.items():
        try:
            extractors[name] = FeatureExtractor(model, layers[name], arch.data_format)
        except FeatureLayerError as error:
            raise UserError(f"Arch.models: {name}: {error}") from None
    names = [name for name, loss in learned_losses(losses).items() if loss.multi_model]
    return DistillationNetwork(arch.student, student, extractors, arch.peers, names, contexts)


def _loss_layers(arch: DistillationModel, losses: Losses) -> dict[str, list[str]]:
    """Returns the layers of each model whose outputs the losses use."""
    layers: dict[str, list[str]] = {name: [] for name in arch.members}
    facts = arch.model_facts
    for loss in losses:
        for name, layer in loss.layers(facts):
            if layer not in layers[name]:
                layers[name].append(layer)
    return layers


def read_inferred(config: Config, source: Path) -> Arrays:
    """Reads the weights of the model that is evaluated and exported.

    Drops the weights of peers and trainable losses, which a checkpoint contains too.

    Raises:
        UserError: See `read_weights`.
    """
    arrays = read_weights(source)
    peers = config.Arch.peers if isinstance(config.Arch, DistillationModel) else ()
    prefixes = tuple(f"{name}." for name in (*peers, *learned_losses(config.Loss.Train)))
    return {name: array for name, array in arrays.items() if not name.startswith(prefixes)}

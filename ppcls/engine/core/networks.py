"""Builds the network of a config: a classifier, a network for embeddings, or a network for distillation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from paddle import nn

from ppcls.arch.distillation import DistillationNetwork, attach_to_student
from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.layers.feature_extractor import FeatureExtractor, FeatureLayerError
from ppcls.engine.core.precision import build_precision
from ppcls.engine.core.settings import AMP
from ppcls.errors import UserError
from ppcls.files.urls import naming_addresses
from ppcls.loss.base import Loss, learned_losses
from ppcls.storage.models import weights_path
from ppcls.weights.files import Arrays, fill_model, read_weights, start_from

Losses = Sequence[Loss]


def build_network(arch: AnyArch, pretrained: bool = False) -> nn.Layer:
    """Builds the model that is evaluated and exported, with random weights.

    Args:
        pretrained: Whether to load the weights that the config sets for the backbone of a `RecModel`.
    """
    return arch.build(_load_backbone if pretrained else None)


@naming_addresses()
def _read(source: str) -> Arrays:
    """Reads weights that the config names by a path, a name or an address."""
    return read_weights(weights_path(source))


def _load_backbone(backbone: nn.Layer, source: str) -> None:
    start_from(backbone, _read(source), source)


def join_beside(student: nn.Layer, arch: AnyArch, losses: Losses) -> None:
    """Adds trainable losses and, in distillation, peers to a model as sublayers.

    The optimizer then trains them together with the model.

    Raises:
        UserError: Weights cannot be read or do not fit, or the student already has a layer of the same name.
    """
    beside: dict[str, nn.Layer] = {}
    for name in arch.peers:
        peer = build_network(arch.members[name], pretrained=True)
        source = arch.initial_weights(name)
        if source is not None:
            start_from(peer, _read(source), source)
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
    student: nn.Layer, arch: AnyArch, losses: Losses, amp: AMP | None, device: Literal["cpu", "gpu"]
) -> nn.Layer:
    """Returns the network that training calls: the student, its peers and its teachers.

    Builds the teachers and loads their weights.

    Args:
        student: Built model of the student, with the peers as sublayers.
        arch: Section of several models.
        losses: Losses of training, which determine the layers whose outputs are kept.
        amp: Settings of mixed precision; None without mixed precision.
        device: Device of the models.

    Raises:
        UserError: Weights cannot be read or do not fit, or a loss uses a layer that does not exist.
    """
    models = {arch.student: student, **{name: getattr(student, name) for name in arch.peers}}
    # Teachers run in evaluation mode, but in the precision of training.
    amp = amp.model_copy(update={"use_fp16_test": True}) if amp is not None else None
    contexts = {}
    for name in arch.frozen:
        models[name] = build_network(arch.members[name])
        source = arch.initial_weights(name)
        assert source is not None  # checked by the config
        fill_model(models[name], _read(source), source)
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


def _loss_layers(arch: AnyArch, losses: Losses) -> dict[str, list[str]]:
    """Returns the layers of each model whose outputs the losses use."""
    layers: dict[str, list[str]] = {name: [] for name in arch.members}
    facts = arch.model_facts
    for loss in losses:
        for name, layer in loss.layers(facts):
            if layer not in layers[name]:
                layers[name].append(layer)
    return layers


def read_inferred(arch: AnyArch, losses: Losses, source: Path) -> Arrays:
    """Reads the weights of the model that is evaluated and exported.

    Drops the weights of peers and trainable losses, which a checkpoint contains too.

    Args:
        losses: Losses of training.
        source: Checkpoint folder, or another source of weights.

    Raises:
        UserError: See `read_weights`.
    """
    arrays = read_weights(source)
    prefixes = beside_prefixes(arch, losses)
    return {name: array for name, array in arrays.items() if not name.startswith(prefixes)}


def beside_prefixes(arch: AnyArch, losses: Losses) -> tuple[str, ...]:
    """Returns the prefixes of the weights of peers and trainable losses; see `join_beside`."""
    return tuple(f"{name}." for name in (*arch.peers, *learned_losses(losses)))

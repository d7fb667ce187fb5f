"""The models of ``Arch.name: DistillationModel``: built, filled, put together; the student read back."""

from __future__ import annotations

from pathlib import Path

from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.distillation import Distilling, add_peer
from ppcls.config.distillation import DistillationModel
from ppcls.config.fields import Section
from ppcls.config.model import Arch
from ppcls.config.schema import Config
from ppcls.engine.precision import build_precision
from ppcls.engine.weights import Arrays, fill_model, read_weights, start_from
from ppcls.errors import UserError
from ppcls.runtime import Runtime


def build_arch(arch: Arch) -> nn.Layer:
    """Builds one model with fresh weights."""
    return build_model(arch.name, arch.class_num, arch.data_format, arch.input_image_channel, **arch.options)


def join_peers(student: nn.Layer, arch: Section) -> None:
    """Builds the models that learn beside the student, as its sublayers; none where it is alone.

    Raises:
        UserError: Weights can't be read or are another model's, or a model's name is taken in the student.
    """
    if not isinstance(arch, DistillationModel):
        return
    for name in arch.peers:
        peer, source = build_arch(arch.members[name]), arch.weights_of(name)
        if source is not None:
            start_from(peer, read_weights(Path(source)), source)
        try:
            add_peer(student, name, peer)
        except ValueError as error:
            raise UserError(f"Arch.models: {error}") from None


def distilling(student: nn.Layer, arch: DistillationModel, config: Config, runtime: Runtime) -> nn.Layer:
    """Returns what training calls: the student with its peers, and the teachers with their weights.

    Raises:
        UserError: These can't be read, or are another model's.
    """
    teachers: dict[str, nn.Layer] = {}
    for name in arch.frozen:
        teacher, source = build_arch(arch.members[name]), arch.weights_of(name)
        assert source is not None  # by the config
        fill_model(teacher, read_weights(Path(source)), source)
        build_precision(config.AMP, runtime.device).prepare(teacher, None)
        teachers[name] = teacher
    return Distilling(arch.student, student, arch.peers, teachers)


def read_inferred(config: Config, source: Path) -> Arrays:
    """Reads the weights of the model that is evaluated and exported, without those of its peers.

    Raises:
        UserError: As `read_weights`.
    """
    arrays = read_weights(source)
    if not isinstance(config.Arch, DistillationModel):
        return arrays
    beside = tuple(f"{name}." for name in config.Arch.peers)
    return {name: array for name, array in arrays.items() if not name.startswith(beside)}

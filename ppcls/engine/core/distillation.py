"""The models of ``Arch.name: DistillationModel``: built, filled, put together; the student read back."""

from __future__ import annotations

from pathlib import Path

from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.distillation import DistillationNetwork, attach_to_student
from ppcls.arch.layers.feature_extractor import FeatureExtractor, FeatureLayerError
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.distillation_losses import DistillationLossSpec
from ppcls.config.schema import Config
from ppcls.config.sections.model import Arch
from ppcls.engine.core.precision import build_precision
from ppcls.errors import UserError
from ppcls.loss.learning import build_learning, learning_losses
from ppcls.runtime.start import Runtime
from ppcls.weights.files import Arrays, fill_model, read_weights, start_from


def build_arch(arch: Arch) -> nn.Layer:
    """Builds one model with fresh weights."""
    return build_model(arch.name, arch.class_num, arch.data_format, arch.input_image_channel, **arch.options)


def join_beside(student: nn.Layer, config: Config) -> None:
    """Builds what learns beside the student, peers and losses, as its sublayers; none where it is alone.

    Raises:
        UserError: Weights can't be read or are another model's, or a name is taken in the student.
    """
    arch = config.Arch
    if not isinstance(arch, DistillationModel):
        return
    beside: dict[str, nn.Layer] = {}
    for name in arch.peers:
        peer, source = build_arch(arch.members[name]), arch.initial_weights(name)
        if source is not None:
            start_from(peer, read_weights(Path(source)), source)
        beside[name] = peer
    for name, spec in learning_losses(config.Loss.Train).items():
        beside[name] = build_learning(spec, arch)
    for name, layer in beside.items():
        try:
            attach_to_student(student, name, layer)
        except ValueError as error:
            raise UserError(f"Arch.models: {error}") from None


def distilling(student: nn.Layer, arch: DistillationModel, config: Config, runtime: Runtime) -> nn.Layer:
    """Returns what training calls: the student with its peers, and the teachers with their weights.

    Raises:
        UserError: These can't be read, or are another model's; or a loss is of a layer that is not there.
    """
    models = {arch.student: student, **{name: getattr(student, name) for name in arch.peers}}
    # A teacher is evaluated, but in the precision of training.
    amp = config.AMP.model_copy(update={"use_fp16_test": True}) if config.AMP is not None else None
    teaching = {}
    for name in arch.frozen:
        models[name], source = build_arch(arch.members[name]), arch.initial_weights(name)
        assert source is not None  # by the config
        fill_model(models[name], read_weights(Path(source)), source)
        precision = build_precision(amp, runtime.device)
        precision.prepare(models[name], None)
        teaching[name] = precision.evaluation
    wanted = _layers(config, arch)
    taps: dict[str, FeatureExtractor] = {}
    for name, model in models.items():
        try:
            taps[name] = FeatureExtractor(model, wanted[name], arch.data_format)
        except FeatureLayerError as error:
            raise UserError(f"Arch.models: {name}: {error}") from None
    losses = tuple(learning_losses(config.Loss.Train))
    return DistillationNetwork(arch.student, student, taps, arch.peers, losses, teaching)


def _layers(config: Config, arch: DistillationModel) -> dict[str, list[str]]:
    """Returns for each model the layers whose outputs losses are of."""
    found: dict[str, list[str]] = {name: [] for name in arch.members}
    for spec in config.Loss.Train:
        for name, layer in spec.layers(arch) if isinstance(spec, DistillationLossSpec) else ():
            if layer not in found[name]:
                found[name].append(layer)
    return found


def read_inferred(config: Config, source: Path) -> Arrays:
    """Reads the weights of the model that is evaluated and exported, without those of what learnt beside it.

    Raises:
        UserError: As `read_weights`.
    """
    arrays = read_weights(source)
    if not isinstance(config.Arch, DistillationModel):
        return arrays
    names = (*config.Arch.peers, *learning_losses(config.Loss.Train))
    beside = tuple(f"{name}." for name in names)
    return {name: array for name, array in arrays.items() if not name.startswith(beside)}

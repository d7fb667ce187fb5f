"""Exports weights to a safetensors file with timm's parameter names and layouts."""

from __future__ import annotations

from pathlib import Path

import safetensors.numpy

from ppcls.arch.distillation_model import AnyArch
from ppcls.engine.core.networks import Losses, build_network, read_inferred
from ppcls.errors import UserError
from ppcls.files import atomic_write
from ppcls.weights.files import fill_model
from ppcls.weights.torch_names import to_timm


def write_timm(path: Path, section: AnyArch, losses: Losses, weights: Path) -> None:
    """Writes the weights of a trained classifier for ``timm.create_model(…, checkpoint_path=…)``.

    Args:
        section: Section ``Arch`` of the config.
        losses: Losses of training, whose weights a checkpoint contains too.

    Raises:
        UserError: timm has no equivalent network, or the weights cannot be read.
        OSError: The file cannot be written.
    """
    arch = section.exported
    if section.embeds or arch.layer_type == "DiverseBranchBlock":
        kind = "embedding models" if section.embeds else "DiverseBranchBlock"
        raise UserError(f"{path}: timm has no {kind}; export ONNX instead: ppcls export --format onnx")
    model = build_network(arch)
    fill_model(model, read_inferred(section, losses, weights), weights)
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    data = safetensors.numpy.save(to_timm(model, arrays, arch.name), {"format": "pt"})
    with atomic_write(path) as file:
        file.write(data)

"""The weights that a fresh model begins with."""

from __future__ import annotations

from pathlib import Path

from paddle import nn

from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.embedding import RecModel
from ppcls.config.schema import Config
from ppcls.config.sections.model import Arch
from ppcls.weights.files import read_weights, start_from


def load_pretrained(config: Config, model: nn.Layer, resumed: Path | None = None) -> list[str]:
    """Fills a fresh model from ``Global.pretrained_model``, or its own weights; returns a line for the log.

    Does nothing where none is given, or a checkpoint is ``resumed``.

    Raises:
        UserError: The weights can't be read or are another model's.
    """
    arch = config.Arch
    own = None
    if isinstance(arch, DistillationModel):
        own = arch.initial_weights(arch.student)
    elif isinstance(arch, Arch):
        own = arch.weights
    source = config.Global.pretrained_model or own
    if resumed is not None:
        return []
    if not source and isinstance(arch, RecModel) and arch.Backbone.weights:
        return [f"weights of the backbone from {arch.Backbone.weights}"]
    if not source:
        text = "no weights to start from (Global.pretrained_model): training from the start"
        frozen = config.Optimizer.freeze is not None or config.Optimizer.train_only is not None
        return [f"{text}; what is frozen stays random" if frozen else text]
    fresh = start_from(model, read_weights(Path(source)), source)
    kept = f"; {', '.join(fresh)} start afresh for {config.Arch.class_num} classes" if fresh else ""
    return [f"weights from {source}{kept}"]

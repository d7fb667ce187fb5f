"""Makes the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

from ppcls.config.base.yaml import dump_section
from ppcls.engine.checkpoint.checkpoints import Checkpoints
from ppcls.recipe.schema import Config


def checkpoints_of(output_dir: Path, config: Config) -> Checkpoints:
    """Returns the checkpoints in an output folder, as a run with the config makes them."""
    return Checkpoints(output_dir, config.Global, dump_section(config))

"""Trains a model with dropout and an unused layer; each rank writes its dropout masks and weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from omitted_pictures import omit_curves, omit_heat_maps

from ppcls.recipe.load import load_config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime import start as runtime


def build_dropping(class_num: int, data_format: str, input_image_channel: int) -> object:
    """Builds a linear classifier behind dropout, which remembers what was dropped."""
    import paddle
    from paddle import nn

    class Dropping(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16 * 16 * input_image_channel, class_num)
            self.unused = nn.Linear(3, 3)
            self.dropout = nn.Dropout(0.5)
            self.kept: list[list[float]] = []

        def forward(self, image: paddle.Tensor) -> paddle.Tensor:
            if self.training:
                self.kept.append(self.dropout(paddle.ones([16])).tolist())
            return self.fc(self.dropout(image.flatten(1)))

    return Dropping()


def main(path: str) -> None:
    config = load_config(path)
    run = runtime.start(config.Global)
    from ppcls.engine.train import train

    output = Path(config.Global.output_dir)
    output.mkdir(exist_ok=True)
    state = train(config, run, output)
    seen = {
        "kept": state.model.kept,
        "weights": {name: tensor.tolist() for name, tensor in state.model.state_dict().items()},
        "buffer": state.network.comm_buffer_size,
        "first_rate": state.learning_rate(0),
        "groups": len(state.network.group_indices),
    }
    (output / f"rank_{run.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    ARCHITECTURES.register("Dropping", build_dropping)
    omit_curves()
    omit_heat_maps()
    main(sys.argv[1])

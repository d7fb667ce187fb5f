"""tools/train.py for a model with dropout and a layer that it never calls; each rank writes what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import paddle
from paddle import nn

from ppcls import runtime
from ppcls.config.load import load_config
from ppcls.engine.train import train
from ppcls.registry import ARCHITECTURES


class Dropping(nn.Layer):
    """A linear classifier behind dropout, which remembers what was dropped."""

    def __init__(self, class_num: int, data_format: str, input_image_channel: int) -> None:
        super().__init__()
        self.fc = nn.Linear(16 * 16 * input_image_channel, class_num)
        self.unused = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.kept: list[list[float]] = []

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        if self.training:
            self.kept.append(self.dropout(paddle.ones([16])).tolist())
        return self.fc(self.dropout(image.flatten(1)))


def main(path: str) -> None:
    config = load_config(path)
    run = runtime.start(config.Global)
    output = Path(config.Global.output_dir)
    output.mkdir(exist_ok=True)
    state = train(config, run, output)
    seen = {
        "kept": state.model.kept,
        "weights": {name: tensor.tolist() for name, tensor in state.model.state_dict().items()},
        "buffer": state.network.comm_buffer_size,
        "first_rate": state.schedule(0),
        "groups": len(state.network.group_indices),
    }
    (output / f"rank_{run.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    ARCHITECTURES.register("Dropping", Dropping)
    main(sys.argv[1])

"""Runs tools/train.py with ranks that are slow.

With ``SLOW=0,1:data`` in the environment, ranks 0 and 1 sleep before each batch of their loaders, and with
``SLOW=1:forward``, rank 1 sleeps in each forward pass. With ``CAPTURED=1``, the steps are captured; a CPU
repeats the captured work instead of a replay.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from ppcls.registry import ARCHITECTURES

SECONDS = 0.03


def is_slow(part: str) -> bool:
    ranks, _, slow = os.environ.get("SLOW", ":").partition(":")
    return slow == part and os.environ.get("PADDLE_TRAINER_ID", "0") in ranks.split(",")


def build(class_num: int, data_format: str, input_image_channel: int) -> object:
    from paddle import Tensor, nn

    class Slow(nn.Layer):
        def forward(self, image: Tensor) -> Tensor:
            if self.training and is_slow("forward"):
                time.sleep(SECONDS)
            return image.flatten(1)

    return nn.Sequential(Slow(), nn.Linear(16 * 16 * input_image_channel, class_num))


ARCHITECTURES.register("Slow", build)

if __name__ == "__main__":
    from ppcls.cli.train import train
    from ppcls.data.loaders.paddle import PaddleLoader

    load = PaddleLoader.__iter__

    def load_slowly(loader: PaddleLoader) -> Iterator[Any]:
        for batch in load(loader):
            if is_slow("data"):
                time.sleep(SECONDS)
            yield batch

    PaddleLoader.__iter__ = load_slowly  # type: ignore[method-assign]
    if os.environ.get("CAPTURED"):
        from captured_run import Again

        from ppcls.engine import execution
        from ppcls.engine.cuda_graph.graphed_step import GraphedStep

        execution.choose_step = lambda state, *_: (GraphedStep(state, Again), "steps: recorded")
    sys.exit(train())

"""Short trainings in which two ranks exchange groups of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import paddle
from paddle import nn, optimizer
from small_net import CLASSES, MemoryLoader, content, make_state

from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.order import Order
from ppcls.engine.core.precision import Precision, build_precision
from ppcls.engine.core.sam import SharpnessAware
from ppcls.engine.core.settings import AMP
from ppcls.engine.cuda_graph.graph import Capture
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.runtime.start import Runtime

GROUP_SIZE = 1024  # bytes; the float32 gradients of `Tied` have 10 KiB
EPOCHS = 4  # of three batches


class Again:
    """Does the work at each replay, and not before, like a CUDA graph."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


class Tied(nn.Layer):
    """Linear layers of which one is used twice and one is frozen. The loss has a weight of its own.

    Args:
        late: Whether the layer that is used first is declared last.
    """

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.scale = self.create_parameter([CLASSES], default_initializer=nn.initializer.Constant(1.0))
        if not late:
            self.first = nn.Linear(48, 32)
        self.twice = nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32)
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True
        self.last = nn.Linear(32, CLASSES)
        if late:
            self.first = nn.Linear(48, 32)
        for bias in (self.first.bias, self.twice.bias, self.last.bias):  # they have another update rule
            bias.optimize_attr["learning_rate"] = 2.0

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        """Returns logits."""
        features = nn.functional.relu(self.twice(nn.functional.relu(self.first(image.flatten(1)))))
        features = features + 0.0 * self.scale.sum()  # gives it a gradient in batches without valid rows
        return self.last(nn.functional.relu(self.twice(nn.functional.relu(self.frozen(features)))))

    def loss(self, outputs: paddle.Tensor, label: paddle.Tensor) -> paddle.Tensor:
        """Returns the mean loss."""
        return nn.functional.cross_entropy(outputs.astype("float32") * self.scale.astype("float32"), label)


@dataclass(frozen=True)
class Case:
    """A way to train `Tied`.

    Attributes:
        accumulate: Number of steps per update.
        sam: Whether each batch has a second pass.
        kind: Class of the optimizer.
        level: Level of mixed precision; "" for float32.
        late: See `Tied`.
    """

    accumulate: int = 1
    sam: bool = False
    kind: type[optimizer.Optimizer] = optimizer.Momentum
    level: str = ""
    late: bool = False

    def precision(self) -> Precision:
        """Returns the precision on a GPU."""
        return build_precision(AMP(level=self.level) if self.level else None, "gpu")


CASES = {
    "float32": Case(),
    "two steps": Case(accumulate=2),
    "SAM": Case(sam=True),
    "SAM, two steps": Case(accumulate=2, sam=True),
    "AdamW": Case(kind=optimizer.AdamW),
    "late gradient": Case(late=True),
}
GPU_CASES = {"O1": Case(level="O1"), "O2": Case(level="O2"), "O2, two steps": Case(accumulate=2, level="O2")}


def make_loader(case: Case, run: Runtime) -> MemoryLoader:
    """Returns a loader of the batches of one rank. The last batch of an epoch is partial."""
    size = 20 * run.world_size
    loader = MemoryLoader(size)
    places = {"rank": run.rank, "world": run.world_size}
    loader.order = Order(ShuffledSampler(size), 8, accumulate=case.accumulate, **places)
    return loader


def train(
    case: Case,
    group_size: int | None,
    capture: Capture,
    run: Runtime,
    loader: MemoryLoader,
    *,
    precision: Precision | None = None,
    before_step: Callable[[nn.Layer], None] = lambda _: None,
) -> dict[str, np.ndarray]:
    """Returns the weights after a short training.

    Args:
        before_step: Function that is called with the model before each step.
    """
    paddle.seed(1)
    model = Tied(case.late)
    state = make_state(model=model, kind=case.kind, loader=loader, precision=precision or case.precision())
    state = replace(state, criterion=model.loss, runtime=run)
    if case.sam:
        state = replace(state, sam=SharpnessAware(0.05, model))
    step = GraphedStep(state, capture, group_size=group_size)
    model.train()
    for _ in range(EPOCHS * case.accumulate):
        for batch in loader:
            before_step(model)
            step(state, batch)
    assert step.captured
    return content(model)

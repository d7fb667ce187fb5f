"""Parts of a run that takes milliseconds: a small model, images in memory, and the training state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn, optimizer
from small_tree import small_tree

from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.engine.core.ema import Ema
from ppcls.engine.core.gradients import ParameterGradients
from ppcls.engine.core.loss_scale import LossScale
from ppcls.engine.core.precision import FP32, Precision
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.engine.evaluation.evaluate import EvalResult, Evaluator
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.metric.build import build_metrics
from ppcls.metric.single_label import TopkAcc
from ppcls.optimizer.state import master_weights
from ppcls.recipe.load import validate
from ppcls.runtime.start import Runtime

CLASSES = 4


class Net(nn.Layer):
    """A convolution, a BatchNorm and a classifier, for images of 4 px."""

    def __init__(self, classes: int = CLASSES, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, width, 3, padding=1, bias_attr=False)
        self.bn = nn.BatchNorm2D(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        return self.fc(nn.functional.relu(self.bn(self.conv(image))).mean([2, 3]))


class Flat(nn.Layer):
    """A linear layer: what is not finite shows in its loss, which a rectifier may hide."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        return self.fc(image.flatten(1))


def build_net(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:
    """Builds `Net` as an architecture that a config names."""
    assert (data_format, input_image_channel) == ("NCHW", 3)
    return Net(class_num)


def build_linear(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:
    """Builds a linear layer over 16 px images as an architecture that a config names."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * input_image_channel, class_num))


class Names:
    """An index of samples that are nowhere but in memory."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:
        return f"image {position}"

    def where(self, position: int) -> str:
        return f"line {position + 1}"


class MemoryLoader:
    """A loader over samples that are a function of their position."""

    quarantine = None

    def release(self) -> None:
        """Holds nothing."""

    def __init__(
        self, size: int = 20, batch_size: int = 8, accumulate: int = 1, shuffle: bool = True
    ) -> None:
        rng = np.random.default_rng(1)
        self.images = rng.normal(size=(size, 3, 4, 4)).astype(np.float32)
        self.labels = rng.integers(0, CLASSES, size)
        self.index = Names(self.labels)
        sampler = ShuffledSampler(size) if shuffle else SequentialSampler(size)
        self.order = Order(sampler, batch_size, accumulate=accumulate)
        self.cursor = Cursor()

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.cursor.epoch
        while self.cursor.epoch == epoch:
            step = self.order.at(self.cursor)
            self.cursor = self.cursor.next(len(self.order))
            image, label = self.images[step.indices], self.labels[step.indices]
            yield Batch(
                paddle.to_tensor(image), paddle.to_tensor(label), step.valid, step.weight, step.update
            )

    def state_dict(self) -> dict[str, Any]:
        return self.order.state_dict(self.cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cursor = self.order.restore(state)


def make_state(
    seed: int = 1,
    model: nn.Layer | None = None,
    decay: float | None = None,
    kind: type[optimizer.Optimizer] = optimizer.Momentum,
    precision: Precision | None = None,
    loader: MemoryLoader | None = None,
) -> TrainState:
    """Returns a run at its beginning.

    Args:
        seed: Of the weights.
        model: Takes the place of a `Net`.
        decay: Of the weights' average; None for none.
        kind: Of optimizer.
        precision: Takes the place of float32.
        loader: Takes the place of one of 20 images in batches of 8.
    """
    paddle.seed(seed)
    model = model or Net()
    made = kind(0.1, parameters=model.parameters())
    precision = precision or FP32()
    made._multi_precision = precision.master_weights
    precision.prepare(model, made)
    return TrainState(
        model=model,
        network=model,
        optimizer=made,
        schedule=lambda update: 0.1 / (1 + update),
        precision=precision,
        criterion=build_criterion((CELoss(),)),
        metrics=build_metrics((TopkAcc(topk=(1, 2)),)),
        loader=loader or MemoryLoader(),
        ema=Ema(model, decay, master_weights(made, model)) if decay is not None else None,
        runtime=Runtime(),
        config=validate(small_tree(Path("images"), Path("run")), "small"),
        gradients=ParameterGradients(made),
    )


def train_epochs(state: TrainState, epochs: int = 1) -> TrainState:
    """Trains without a log or a checkpoint."""
    state.network.train()
    for _ in range(epochs):
        for batch in state.loader:
            train_step(state, batch)
    return state


def update(precision: Precision | LossScale, optimizer: Any) -> None:
    """Ends an update by the gradients that a backward pass left in the parameters."""
    with paddle.no_grad():
        precision.end_update(precision.update(optimizer, ParameterGradients(optimizer)))


def evaluate(
    model: nn.Layer,
    batches: Any,
    criterion: Any,
    metrics: Any,
    precision: Precision,
    classes: int | None = None,
) -> EvalResult:
    """Evaluates a model on batches."""
    return Evaluator({}, criterion, metrics, precision, classes=classes).evaluate(model, batches)


def content(model: nn.Layer) -> dict[str, np.ndarray]:
    """Returns copies of a model's tensors."""
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Holds arrays or tensors under the same names to be the same bits."""
    assert found.keys() == expected.keys()
    for name in expected:
        one, other = np.asarray(found[name]), np.asarray(expected[name])
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name)

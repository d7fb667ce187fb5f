"""The state of a training run: everything that a checkpoint stores and that the training step uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import paddle
from paddle import nn

from ppcls.engine.core.gradients import GradientStore, ParameterGradients
from ppcls.engine.core.parallel import connect_ranks

if TYPE_CHECKING:  # only for annotations: the training step must not import what builds these
    from ppcls.config.schema import Config
    from ppcls.config.sections.run import Global
    from ppcls.data.loaders.batch import Loader
    from ppcls.engine.core.ema import Ema
    from ppcls.engine.core.precision import Precision
    from ppcls.loss.build import Criterion
    from ppcls.metric.build import Metrics
    from ppcls.optimizer.plateau import Plateau
    from ppcls.runtime.start import Runtime


@dataclass
class TrainState:
    """A run between two steps. A checkpoint holds all of it that changes.

    Attributes:
        model: Bare model, whose parameter names checkpoints use.
        network: The model as training calls it: compiled, or wrapped for data parallelism.
        optimizer: Optimizer of the model's parameters.
        schedule: Learning rate as a function of the update, from 0.
        precision: Precision of forward pass, backward pass and update.
        criterion: Mean loss as a function of the model's outputs and labels.
        metrics: Metrics counted during training; None for none.
        loader: Loader of the training data, which knows its position in the run.
        ema: Moving average of the weights; None for none.
        runtime: Rank and device.
        update: Number of finished updates.
        best: Metric of the best evaluation so far; None before the first one.
        not_better: Number of evaluations since the best one.
        closing: Whether the last epoch is trained but not yet evaluated and saved.
        frozen: Names of parameters, and of BatchNorm statistics, that training does not change.
        plateau: Lowers the learning rate when evaluations stop improving; None for none.
        config: Config of the run; None if the state was built by hand.
        gradients: Gradients of the current update.
    """

    model: nn.Layer
    network: nn.Layer
    optimizer: Any
    schedule: Callable[[int], float]
    precision: Precision
    criterion: Criterion
    metrics: Metrics | None
    loader: Loader
    ema: Ema | None
    runtime: Runtime
    update: int = 0
    best: float | None = None
    not_better: int = 0
    closing: bool = False
    frozen: frozenset[str] = frozenset()
    plateau: Plateau | None = None
    config: Config | None = None
    gradients: GradientStore = field(init=False)

    def __post_init__(self) -> None:
        self.gradients = ParameterGradients(self.optimizer)

    @property
    def epoch(self) -> int:
        """Number of finished epochs, which is the index of the running epoch."""
        return int(self.loader.state_dict()["epoch"])

    @property
    def step(self) -> int:
        """Number of finished steps of the running epoch."""
        return int(self.loader.state_dict()["step"])

    @property
    def updates_per_epoch(self) -> int:
        """Number of updates of a whole epoch."""
        return self.loader.order.updates_per_epoch

    @property
    def updates_of_epoch(self) -> int:
        """Number of finished updates of the running epoch."""
        return -(-self.step // self.loader.order.accumulate)

    @property
    def judge(self) -> str | None:
        """Name of the metric that selects the best model; None without a config."""
        return None if self.config is None else self.config.Metric.Eval[0].names[0]

    def connect(self, settings: Global, *, overlapping: bool = True) -> None:
        """Connects the ranks, which start from rank 0's weights; waits for all of them.

        Args:
            settings: Settings of the gradient exchange.
            overlapping: Whether ranks exchange gradients during the backward pass, instead of after it.
        """
        self.network = connect_ranks(self.network, settings, self.runtime, overlapping=overlapping)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def share_statistics(self) -> None:
        """Averages BatchNorm's running statistics over the ranks, each of which sees its own samples.

        Then all ranks evaluate the same model, and a checkpoint that rank 0 writes holds for every rank.
        Training itself normalizes by the batch and is not affected. With ``Global.sync_bn`` the statistics
        are equal already, and stay equal.
        """
        if self.runtime.world_size == 1:
            return
        self.runtime.progress.report("sharing BatchNorm's statistics")
        tensors = self.model.state_dict()
        average = self.ema.state_dict() if self.ema is not None else {}
        # Paddle keeps running statistics among the parameters, without a gradient.
        names = [
            name
            for name, tensor in tensors.items()
            if tensor.stop_gradient and tensor.is_floating_point() and name not in self.frozen
        ]
        buffers = [tensors[name] for name in names] + [average[name] for name in names if name in average]
        if not buffers:
            return
        flat = paddle.concat([buffer.flatten().astype("float32") for buffer in buffers])
        paddle.distributed.all_reduce(flat)
        means = (flat / self.runtime.world_size).split([buffer.size for buffer in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.reshape(buffer.shape).astype(buffer.dtype), True)

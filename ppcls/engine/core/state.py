"""State of a training run: everything that the training step uses and that a checkpoint stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import paddle
from paddle import nn

from ppcls.arch.batch_statistics import estimate_statistics

if TYPE_CHECKING:  # only for annotations: the training step must not import the modules that build a run
    from ppcls.arch.layers.drop_path import StepMasks
    from ppcls.data.loaders.batch import Batch, Loader
    from ppcls.engine.core.ema import Ema
    from ppcls.engine.core.gradients import GradientStore
    from ppcls.engine.core.precision import Precision
    from ppcls.engine.core.sam import SharpnessAware
    from ppcls.loss.base import Criterion
    from ppcls.metric.build import Metrics
    from ppcls.optimizer.plateau import Plateau
    from ppcls.recipe.schema import Config
    from ppcls.runtime.start import Runtime


@dataclass
class RunProgress:
    """Counters of a run.

    Attributes:
        update: Number of finished updates.
        best: Metric of the best evaluation so far; None before the first one.
        not_better: Number of evaluations since the best one.
        metrics: Metrics of the last evaluation; empty before the first one, or after a resume from an older
            checkpoint, which does not contain them.
        closing: Whether the steps of the last started epoch are finished, but its evaluation and checkpoint
            are not.
        schedule_shift: Number of updates by which the learning rate schedule is ahead of ``update``. It is
            not 0 if earlier epochs had another number of updates, or if the time does not suffice for all
            updates (``Global.time_limit``).
    """

    update: int = 0
    best: float | None = None
    not_better: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    closing: bool = False
    schedule_shift: float = 0


@dataclass(frozen=True)
class TrainState:
    """State of a run between two steps. A checkpoint stores everything that changes.

    `ppcls.engine.core.build.build_state` builds all attributes, and none of them is replaced afterwards. A
    copy by `dataclasses.replace` represents the same run: it shares the weights and the progress.

    Attributes:
        model: Bare model, whose parameter names checkpoints use.
        network: Network that training calls: the model, compiled or wrapped for distillation or data
            parallelism.
        optimizer: Optimizer of the model's parameters.
        schedule: Learning rate as a function of the update, from 0.
        precision: Precision of forward pass, backward pass and update.
        criterion: Mean loss as a function of the model's outputs and labels.
        metrics: Metrics that are computed during training; None if there are none.
        loader: Loader of the training data. Its state holds the position in the run.
        ema: Moving average of the weights; None without a moving average.
        runtime: Rank and device.
        config: Config of the run.
        gradients: Gradients of the current update.
        frozen: Names of parameters, and of BatchNorm statistics, that training does not change.
        plateau: State of ``ReduceOnPlateau``, which lowers the learning rate when evaluations stop
            improving; None for other schedules.
        progress: Counters of the run.
        masks: Random factors of dropout and stochastic depth; None if they come from Paddle's generator.
        sam: Moves the weights for the second pass of each batch; None for a single pass.
    """

    model: nn.Layer
    network: nn.Layer
    optimizer: Any
    schedule: Callable[[float], float]
    precision: Precision
    criterion: Criterion
    metrics: Metrics | None
    loader: Loader
    ema: Ema | None
    runtime: Runtime
    config: Config
    gradients: GradientStore
    frozen: frozenset[str] = frozenset()
    plateau: Plateau | None = None
    progress: RunProgress = field(default_factory=RunProgress)
    masks: StepMasks | None = None
    sam: SharpnessAware | None = None

    @property
    def update(self) -> int:
        """Number of finished updates."""
        return self.progress.update

    @property
    def epoch(self) -> int:
        """Number of finished epochs, which is also the index of the current epoch, from 0."""
        return int(self.loader.state_dict()["epoch"])

    @property
    def step(self) -> int:
        """Number of finished steps of the current epoch."""
        return int(self.loader.state_dict()["step"])

    @property
    def updates_per_epoch(self) -> int:
        """Number of updates of a complete epoch."""
        return self.loader.order.updates_per_epoch

    @property
    def updates_of_epoch(self) -> int:
        """Number of finished updates of the current epoch."""
        return -(-self.step // self.loader.order.accumulate)

    @property
    def judge(self) -> str:
        """Name of the metric that selects the best model."""
        return self.config.Metric.Eval[0].names[0]

    def learning_rate(self, update: int) -> float:
        """Returns the learning rate of an update.

        Args:
            update: Number of the update in the run, from 0.
        """
        return self.schedule(update + self.progress.schedule_shift)

    def estimate_statistics(self, loader: Loader) -> None:
        """Estimates the running statistics of BatchNorm again. All ranks must call it.

        If the moving average is applied to the model, its statistics are estimated and stored.

        Args:
            loader: Loader of the images for the estimate. The current epoch determines its random transforms,
                so a resumed run gets the same statistics.
        """
        loader.load_state_dict({**loader.state_dict(), "epoch": self.epoch, "step": 0})
        self.runtime.progress.report("estimating BatchNorm's statistics")

        def forward(batch: Batch) -> None:
            with self.precision.evaluation():
                self.model(self.precision.images(batch.image, training=False))

        batches = (batch for batch in loader if batch.valid)
        estimate_statistics(self.model, forward, batches, self.runtime.world_size)
        if self.ema is not None:
            self.ema.keep_statistics(self.frozen)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def share_statistics(self) -> None:
        """Averages the running statistics of BatchNorm, which differ between ranks, over the ranks.

        All ranks then evaluate the same model, and the checkpoint that rank 0 writes is valid for every rank.
        Training is not affected, because it normalizes by the statistics of the batch. With
        ``Global.sync_bn`` the statistics are already equal, and averaging does not change them.
        """
        if self.runtime.world_size == 1:
            return
        self.runtime.progress.report("sharing BatchNorm's statistics")
        tensors = self.model.state_dict()
        average = self.ema.state_dict() if self.ema is not None else {}
        # Running statistics are tensors of the state dict that have no gradient.
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

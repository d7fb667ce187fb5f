"""All that a training run must remember."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import nn

from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.embedding import RecModel
from ppcls.config.schema import Config
from ppcls.config.sections.run import EMA, Global
from ppcls.config.sections.schedule import ReduceOnPlateau
from ppcls.data.build import build_loader
from ppcls.data.index.read import positive_rates
from ppcls.data.loaders.batch import Loader
from ppcls.engine.core.compiled import compiled
from ppcls.engine.core.distillation import build_arch, distilling, join_beside
from ppcls.engine.core.ema import Ema
from ppcls.engine.core.embedding import build_embedding
from ppcls.engine.core.parallel import exchange_gradients, synchronize_batch_norm
from ppcls.engine.core.precision import FP32, build_precision
from ppcls.errors import UserError
from ppcls.loss.build import Criterion, build_criterion
from ppcls.metric.build import Metrics, build_metrics
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import factors, freeze
from ppcls.optimizer.plateau import Plateau
from ppcls.optimizer.schedule import RateScale, build_schedule
from ppcls.optimizer.state import master_weights
from ppcls.runtime.start import Runtime


@dataclass
class TrainState:
    """A run between two batches. What a checkpoint holds is in here, and nothing else changes.

    Attributes:
        model: The bare model, whose names checkpoints use.
        network: The model as training calls it: wrapped for data parallelism where there are ranks.
        optimizer: Over the model's parameters.
        schedule: Optimizer update, from 0, to learning rate.
        precision: How forward, backward and step compute.
        criterion: What the model gives and labels to mean loss.
        metrics: Counted while training; None where none is asked for.
        loader: Feeds training; it knows the position within the run.
        ema: The weights' moving average, where asked for.
        runtime: Rank and device.
        update: Optimizer updates done.
        best: Metric of the best evaluation so far.
        not_better: Evaluations since that one.
        closing: The last epoch is trained, but not evaluated and saved as yet.
        frozen: Names of parameters, and of BatchNorm's statistics, that training leaves as they are.
        plateau: Lowers the schedule's rate by evaluations, where asked for.
        config: What it was built by; None where it was put together by hand.
    """

    model: nn.Layer
    network: nn.Layer
    optimizer: Any
    schedule: Callable[[int], float]
    precision: FP32
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

    @property
    def epoch(self) -> int:
        """Epochs done; the running one, from 0."""
        return int(self.loader.state_dict()["epoch"])

    @property
    def step(self) -> int:
        """Batches done in the running epoch."""
        return int(self.loader.state_dict()["step"])

    @property
    def updates_per_epoch(self) -> int:
        """Optimizer updates of a whole epoch."""
        return self.loader.order.updates_per_epoch

    @property
    def updates_of_epoch(self) -> int:
        """Optimizer updates done in the running epoch."""
        return -(-self.step // self.loader.order.accumulate)

    @property
    def judge(self) -> str | None:
        """Name of the number that says which model is best; None without a config."""
        return None if self.config is None else _judge(self.config)

    def connect(self, settings: Global, *, overlapping: bool = True) -> None:
        """Has the ranks exchange gradients from now on, from rank 0's weights; waits for all of them.

        Args:
            settings: Of the exchange.
            overlapping: Whether they do so while backward runs; else after it.
        """
        self.network = exchange_gradients(self.network, settings, self.runtime, overlapping=overlapping)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def share_statistics(self) -> None:
        """Averages BatchNorm's running statistics over the ranks, each of which sees its own samples.

        Then all ranks evaluate one model, and a checkpoint that rank 0 writes is every rank's. Training
        itself normalizes by the batch and does not notice. Under ``Global.sync_bn`` the ranks' statistics
        are the same already, and stay so.
        """
        if self.runtime.world_size == 1:
            return
        self.runtime.progress.report("sharing BatchNorm's statistics")
        own = self.model.state_dict()
        average = self.ema.state_dict() if self.ema is not None else {}
        # Paddle keeps running statistics among the parameters, without a gradient.
        names = [
            name
            for name, each in own.items()
            if each.stop_gradient and each.is_floating_point() and name not in self.frozen
        ]
        buffers = [own[name] for name in names] + [average[name] for name in names if name in average]
        if not buffers:
            return
        flat = paddle.concat([buffer.flatten().astype("float32") for buffer in buffers])
        paddle.distributed.all_reduce(flat)
        means = (flat / self.runtime.world_size).split([buffer.size for buffer in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.reshape(buffer.shape).astype(buffer.dtype), True)


def build_network(config: Config, pretrained: bool = False) -> nn.Layer:
    """Builds the bare model of a config, with fresh weights; of several models the one that is evaluated.

    Args:
        config: The whole config.
        pretrained: Whether a backbone gets the weights that it has in the config.
    """
    if isinstance(config.Arch, RecModel):
        return build_embedding(config.Arch, pretrained)
    return build_arch(config.Arch.exported)


def build_state(
    config: Config,
    runtime: Runtime,
    pretrained: Callable[[nn.Layer], object],
    loader: Loader | None = None,
) -> TrainState:
    """Builds a run at its beginning, and waits for no other rank: `TrainState.connect` is still to come.

    Args:
        config: The whole config.
        runtime: Rank and device.
        pretrained: Fills the fresh model before it is cast or wrapped.
        loader: Feeds training; by default the one of ``DataLoader.Train``.

    Raises:
        UserError: The config has no ``DataLoader.Train``, or its data can't be used.
    """
    split = config.DataLoader.Train
    if split is None:
        raise UserError("training needs DataLoader.Train in the config")
    if loader is None:
        loader = build_loader(config, split, runtime, training=True)
    precision = build_precision(config.AMP, runtime.device)
    if precision.master_weights:
        _try_half(config, precision)
    paddle.seed(config.Global.seed)
    model = build_network(config, pretrained=True)
    pretrained(model)
    join_beside(model, config)
    frozen = freeze(config.Optimizer, model)
    if config.Global.sync_bn:
        model = synchronize_batch_norm(model, runtime)
    own = factors(config.Optimizer, model)
    optimizer = build_optimizer(config.Optimizer, model, precision.master_weights, own)
    precision.prepare(model, optimizer)
    schedule = _schedule(config, loader)
    rate = config.Optimizer.lr
    plateau = Plateau(rate, _judge(config)) if isinstance(rate, ReduceOnPlateau) else None
    return TrainState(
        model=model,
        network=_network(model, config, runtime),
        optimizer=optimizer,
        schedule=schedule if plateau is None else plateau.applied(schedule),
        precision=precision,
        criterion=build_criterion(config.Loss.Train, positive_rates(loader.index), config.Arch.margin),
        metrics=build_metrics(config.Metric.Train) if config.Metric.Train else None,
        loader=loader,
        ema=_average(config.EMA, model, master_weights(optimizer, model), frozen),
        runtime=runtime,
        frozen=frozen,
        plateau=plateau,
        config=config,
    )


def _judge(config: Config) -> str:
    return config.Metric.Eval[0].names[0]


def _network(model: nn.Layer, config: Config, runtime: Runtime) -> nn.Layer:
    if isinstance(config.Arch, DistillationModel):
        return distilling(model, config.Arch, config, runtime)
    return compiled(model, config, runtime)


def _average(
    settings: EMA | None, model: nn.Layer, masters: Mapping[str, paddle.Tensor], frozen: frozenset[str]
) -> Ema | None:
    if settings is None:
        return None
    return Ema(model, settings.decay, masters, warmup=settings.warmup, frozen=frozen)


def rate_scale(config: Config, loader: Loader) -> RateScale | None:
    """Returns by what learning rates are scaled; None where they are not."""
    if not config.Global.auto_scale_lr:
        return None
    order = loader.order
    return RateScale(order.global_batch, order.world, order.accumulate, config.Global.base_batch_size)


def _schedule(config: Config, loader: Loader) -> Callable[[int], float]:
    schedule = build_schedule(config.Optimizer.lr, config.Global.epochs, loader.order.updates_per_epoch)
    scale = rate_scale(config, loader)
    return schedule if scale is None else scale.applied(schedule)


def _try_half(config: Config, precision: FP32) -> None:
    """Takes one step of the optimizer on a half-precision weight, so that a missing kernel shows here.

    Raises:
        UserError: The installed Paddle can't: 2.6.2's Momentum knows no bfloat16.
    """
    probe = nn.Linear(1, 1)
    optimizer = build_optimizer(config.Optimizer, probe, precision.master_weights)
    precision.prepare(probe, optimizer)
    try:
        with precision.forward():
            probe(precision.images(paddle.ones([1, 1]), training=True)).sum().backward()
        optimizer.step()
    except RuntimeError as error:
        if "is not registered" not in str(error):
            raise
        raise UserError(
            f"{precision.name}: the {config.Optimizer.kind} of Paddle {paddle.__version__} can't update such "
            "weights; use -o AMP.level=O1, float16, another Optimizer, or a newer Paddle"
        ) from None

"""Builds the state of a training run from a config.

Decisions, which the order of the statements in `build_state` follows:
- The random generator is seeded directly before the model is built, so that the initial weights depend only
  on the seed and the model, and not on what a loader or another part drew before.
- Layers of losses and peers join the model before parameters are selected by name and the optimizer is
  built, so that they can be frozen and are trained with it.
- Frozen BatchNorm layers are known before SyncBatchNorm and the fused kernels replace layers: both leave them
  unchanged, because they normalize with their running statistics.
- The model is cast after the optimizer is built, because AMP O2 gives the optimizer its master weights. The
  moving average comes after both, because it averages the master weights.
- The network that training calls is built last. It wraps the model, whose names checkpoints use.
- Blocks are changed to recompute their activations after all layers were replaced and got their masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import paddle
from paddle import nn

from ppcls.arch.fuse import fuse
from ppcls.arch.kernels.errors import KernelsUnavailableError
from ppcls.arch.kernels.fallback import report_unchanged
from ppcls.arch.layers.drop_path import StepMasks, attach_masks
from ppcls.arch.onednn.layers import KINDS
from ppcls.data.build import add_unlabelled, build_loader
from ppcls.data.index.protocol import positive_rates
from ppcls.data.loaders.batch import Loader
from ppcls.data.sampling.order import Order
from ppcls.engine.core.compiled import compile_model, compiles
from ppcls.engine.core.ema import Ema, ScheduleFreeAverage
from ppcls.engine.core.gradients import ParameterGradients
from ppcls.engine.core.networks import build_distilling, build_network, join_beside
from ppcls.engine.core.parallel import synchronize_batch_norm
from ppcls.engine.core.precision import Precision, build_precision
from ppcls.engine.core.recompute import recompute_blocks
from ppcls.engine.core.sam import SharpnessAware
from ppcls.engine.core.settings import TrainingSettings
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.loss.build import build_criterion
from ppcls.loss.class_weights import count_classes
from ppcls.metric.build import build_metrics, with_unlabelled
from ppcls.optimizer.base import Optimizer
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.functional import ScheduleFreeAdamWOptimizer
from ppcls.optimizer.name_rules import factors, freeze
from ppcls.optimizer.rate_scale import RateScale
from ppcls.optimizer.state import master_weights
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:
    from ppcls.recipe.schema import Config


def build_state(
    config: Config,
    runtime: Runtime,
    load_weights: Callable[[nn.Layer, int], object],
    loader: Loader | None = None,
    load_beside: Callable[[nn.Layer], object] = lambda _: None,
) -> TrainState:
    """Builds the state of a new run. Does not wait for other ranks.

    Args:
        load_weights: Function that loads weights into the new model, before the model is cast or wrapped. Its
            arguments are the model and the number of training images.
        loader: Loader of the training data; None to build it from ``DataLoader.Train``.
        load_beside: Function that loads weights of peers and losses, after these were added to the model.

    Raises:
        UserError: The config has no ``DataLoader.Train``, or its data cannot be used.
    """
    split = config.DataLoader.need_train()
    if loader is None:
        classes = config.class_count(training=True)
        loader = build_loader(split, "Train", runtime, config.Global, config.Arch, classes)
        if (unlabelled := config.DataLoader.UnLabelTrain) is not None:
            loader = add_unlabelled(loader, unlabelled, runtime, config.Global, config.Arch)
    precision = build_precision(config.AMP, runtime.device)
    if precision.master_weights:  # before the seed is set, because the check draws random weights
        _check_half_update(config.Optimizer, precision)
    paddle.seed(config.Global.seed)
    model = build_network(config.Arch, pretrained=True)
    load_weights(model, len(loader.index.labels))
    join_beside(model, config.Arch, config.Loss.Train)
    load_beside(model)
    frozen = freeze(config.Optimizer, model)
    if config.Global.sync_bn:
        model = synchronize_batch_norm(model, runtime)
    rates = factors(config.Optimizer, model)
    if config.Global.fused_kernels is True:
        _fuse(model, config.Arch.name, runtime)
    optimizer = build_optimizer(config.Optimizer, model, precision.master_weights, rates)
    precision.prepare(model, optimizer)
    rate = config.Optimizer.lr
    order = loader.order
    schedule = rate.build(config.Global.epochs, order.updates_per_epoch)
    if (scale := rate_scale(config.Global, order)) is not None:
        schedule = scale.applied(schedule)
    plateau = rate.build_plateau(config.Global.epochs, config.Metric.Eval[0].names[0])
    losses = config.Loss.Train
    counts = count_classes(losses, loader.index.labels, config.Arch.class_num)
    criterion = build_criterion(losses, positive_rates(loader.index), config.Arch.margins, counts, model)
    metrics = build_metrics(config.Metric.Train) if config.Metric.Train else None
    if config.SSL is not None:
        criterion = config.SSL.build(criterion)
        metrics = with_unlabelled(metrics, config.SSL.metric())
    ema = None
    if config.EMA is not None:
        masters = master_weights(optimizer, model)
        ema = Ema(model, config.EMA.decay, masters, warmup=config.EMA.warmup, frozen=frozen)
    elif isinstance(optimizer, ScheduleFreeAdamWOptimizer):
        ema = ScheduleFreeAverage(model, optimizer, frozen)
    masks = _attach_masks(model, config.Global.seed, runtime)
    network = model
    if config.Arch.student:  # one of several models
        network = build_distilling(model, config.Arch, losses, config.AMP, runtime.device)
    elif compiles(config.Global, config.Arch, config.AMP, runtime):
        network = compile_model(model, config.Arch, config.AMP, runtime, masks)
    if config.Global.recompute:
        recompute_blocks(model, masks, config.Arch.name)
    sam = None
    if (rho := config.Optimizer.sam_rho) is not None:
        sam = SharpnessAware(rho, model, frozen, config.Optimizer.sam_first_epoch)
    return TrainState(
        model=model,
        network=network,
        optimizer=optimizer,
        schedule=schedule if plateau is None else plateau.applied(schedule),
        precision=precision,
        criterion=criterion,
        metrics=metrics,
        loader=loader,
        ema=ema,
        runtime=runtime,
        config=config,
        gradients=ParameterGradients(optimizer),
        frozen=frozen,
        plateau=plateau,
        masks=masks,
        sam=sam,
    )


def _attach_masks(model: nn.Layer, seed: int, runtime: Runtime) -> StepMasks | None:
    """Makes the random layers of a model on a GPU read factors that a CUDA graph can replay.

    On a CPU, layers draw from Paddle's generator.

    Returns:
        Source of the factors; None if no layer reads them.
    """
    if runtime.device == "cpu":
        return None
    masks = StepMasks(seed, runtime.rank)
    return masks if attach_masks(model, masks) else None


def _fuse(model: nn.Layer, name: str, runtime: Runtime) -> None:
    """Changes the layers of a model, in place, to use the fused kernels."""
    key = "Global.fused_kernels"
    fix = "set Global.fused_kernels=auto"
    try:
        count = fuse(model, runtime.device)
    except KernelsUnavailableError as error:
        raise UserError(f"{key}: {error}; {fix}") from error
    if not count:
        raise UserError(
            f"{key}: {name} has no convolution or batch norm in NHWC; set Arch.data_format=NHWC, or {fix}"
        )
    if runtime.device == "cpu":  # `fuse` reports those on a GPU
        report_unchanged(model, KINDS)


def rate_scale(settings: TrainingSettings, order: Order) -> RateScale | None:
    """Returns the factor on all learning rates; None if the config does not scale them by the batch size."""
    if not settings.auto_scale_lr:
        return None
    return RateScale(order.global_batch, order.world, order.accumulate, settings.base_batch_size)


def _check_half_update(spec: Optimizer, precision: Precision) -> None:
    """Updates one half-precision weight once, to report a missing kernel before training."""
    probe = nn.Linear(1, 1)
    optimizer = build_optimizer(spec, probe, precision.master_weights)
    precision.prepare(probe, optimizer)
    try:
        with precision.forward():
            probe(precision.images(paddle.ones([1, 1]), training=True)).sum().backward()
        optimizer.step()
    except RuntimeError as error:
        if "is not registered" not in str(error):
            raise
        raise UserError(
            f"{precision.name}: {spec.kind} of Paddle {paddle.__version__} cannot update weights "
            "in this precision; use -o AMP.level=O1, float16, another Optimizer, or a newer Paddle"
        ) from None

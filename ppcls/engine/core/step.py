"""One training step: the only place that knows gradient accumulation and the precision's calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import paddle
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import UNTIMED, Phases
from ppcls.engine.core.state import TrainState
from ppcls.outputs import Outputs, first_rows, map_outputs, zero_loss

Step = Callable[[TrainState, Batch, Phases], paddle.Tensor]


def train_step(state: TrainState, batch: Batch, phases: Phases = UNTIMED) -> paddle.Tensor:
    """Takes one batch through forward and backward, and the optimizer where its update ends here.

    Ranks exchange gradients only on the last batch of an update. An update that loss scaling skips,
    its gradients not being finite, counts as one: schedule and average go on, the weights stay.

    Args:
        state: Changed in place.
        batch: To train on.
        phases: Is told what the step does.

    Returns:
        [1 + counts] float32 on the device: the loss summed over real samples, then what the metrics
        count. Reading it waits for the device.
    """
    network = state.network
    exchanges = state.runtime.world_size > 1 and batch.update
    overlapping = isinstance(network, paddle.DataParallel)
    after = exchanges and (phases.exchange_after or not overlapping)
    with network.no_sync() if overlapping and (after or not exchanges) else nullcontext():
        with phases("forward"):
            with state.precision.forward():
                outputs = network(state.precision.images(batch.image, training=True))
            loss = _mean_loss(state, outputs, batch)
        with phases("backward"):
            state.precision.backward(loss * batch.weight)
    if after:
        with phases("all-reduce"):
            fused_allreduce_gradients(list(state.model.parameters()), None)
    if batch.update:
        with phases("optimizer"):
            state.optimizer.set_lr(state.schedule(state.update))
            state.precision.step(state.optimizer)
            state.optimizer.clear_grad(set_to_zero=False)
            state.update += 1
            if state.ema is not None:
                state.ema.begin(state.update)
                state.ema.update()
    return _sums(state, map_outputs(outputs, paddle.Tensor.detach), loss.detach(), batch)


def _mean_loss(state: TrainState, outputs: Outputs, batch: Batch) -> paddle.Tensor:
    """Returns the mean loss of the batch's real samples."""
    if batch.valid == 0:
        return zero_loss(outputs)  # this rank still takes part in the exchange
    return state.criterion(first_rows(outputs, batch.valid), batch.label[: batch.valid])


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _sums(state: TrainState, outputs: Outputs, loss: paddle.Tensor, batch: Batch) -> paddle.Tensor:
    sums = (loss * batch.valid).astype("float32").reshape([1])
    if state.metrics is None:
        return sums
    if batch.valid == 0:
        return paddle.concat([sums, paddle.zeros([state.metrics.width])])
    counts = state.metrics.counts(first_rows(outputs, batch.valid), batch.label[: batch.valid])
    return paddle.concat([sums, counts.astype("float32")])

"""One training step. Eager execution, compiled models and CUDA graphs use the same functions.

`forward`, `collect_gradients` and `apply_update` only launch device work that is equal in each step, so CUDA
graphs can capture and replay them. The rest of `train_step` is the same in all modes: losses and metrics of
the valid samples, gradient accumulation, learning rate, loss scale, counters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import paddle

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import NO_HOOKS, StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.outputs import Outputs, first_rows, map_outputs, zero_loss

Step = Callable[[TrainState, Batch, StepHooks], paddle.Tensor]


def forward(state: TrainState, image: paddle.Tensor) -> Outputs:
    """Returns the outputs of the network, with gradients."""
    if state.masks is not None:
        state.masks.begin_forward()
    with state.precision.forward():
        outputs: Outputs = state.network(state.precision.images(image, training=True))
    return outputs


def collect_gradients(state: TrainState) -> None:
    """Adds the gradients of the backward pass to ``state.gradients``."""
    state.gradients.collect()


@paddle.no_grad()  # type: ignore[untyped-decorator]
def update_weights(state: TrainState) -> paddle.Tensor:
    """Updates the weights with ``state.gradients``, then clears the gradients.

    With loss scaling, an update with a non-finite gradient changes nothing.

    Returns:
        Whether a gradient is non-finite, [1] bool.
    """
    overflow: paddle.Tensor = state.precision.update(state.optimizer, state.gradients)
    state.gradients.clear()
    return overflow


def apply_update(state: TrainState) -> paddle.Tensor:
    """Updates the weights, then their moving average.

    Returns:
        Whether a gradient is non-finite, [1] bool.
    """
    overflow: paddle.Tensor = update_weights(state)
    if state.ema is not None:
        state.ema.update()
    return overflow


@dataclass(frozen=True)
class StepFunctions:
    """Functions that launch the device work of a step.

    Attributes:
        forward: `forward`, or a replay of its CUDA graph.
        collect_gradients: `collect_gradients`. If the backward pass of the loss ends at the outputs of
            ``forward``, a replay of the CUDA graph of the network's backward pass.
        apply_update: `apply_update`, or a replay of its CUDA graph.
    """

    forward: Callable[[TrainState, paddle.Tensor], Outputs] = forward
    collect_gradients: Callable[[TrainState], None] = collect_gradients
    apply_update: Callable[[TrainState], paddle.Tensor] = apply_update


EAGER = StepFunctions()


def forward_backward(
    state: TrainState,
    batch: Batch,
    hooks: StepHooks = NO_HOOKS,
    functions: StepFunctions = EAGER,
    *,
    overlap: bool = True,
) -> paddle.Tensor:
    """Adds the gradients of one batch to ``state.gradients``.

    Args:
        overlap: Whether `paddle.DataParallel` averages the gradients over the ranks during the backward pass
            of the last step of an update.

    Returns:
        [1 + counts] float32 on the device: the sum of the losses of valid samples, then the counts of the
        training metrics. Reading the values waits for the device.
    """
    network = state.network
    exchanging = overlap and batch.update
    parallel = isinstance(network, paddle.DataParallel)
    with network.no_sync() if parallel and not exchanging else nullcontext():
        with hooks("forward"):
            outputs = functions.forward(state, batch.image)
            loss = _mean_loss(state, outputs, batch)
        with hooks("backward"):
            state.precision.backward(loss * (batch.weight * state.gradients.loss_factor))
            functions.collect_gradients(state)
    return _sums(state, map_outputs(outputs, paddle.Tensor.detach), loss.detach(), batch)


def sharpness_aware_passes(
    state: TrainState,
    batch: Batch,
    hooks: StepHooks = NO_HOOKS,
    functions: StepFunctions = EAGER,
    *,
    overlap: bool = True,
) -> paddle.Tensor:
    """Adds the gradients of one batch at the place to which SAM moves the weights (`SharpnessAware`).

    Both passes draw the same random numbers. The arguments and the result are those of `forward_backward`.
    Losses and metrics are those of the first pass, with the weights of the run.
    """
    assert state.sam is not None
    random = paddle.get_rng_state()
    state.gradients.begin_trial()
    sums = forward_backward(state, batch, hooks, functions, overlap=False)
    with hooks("optimizer"):
        state.sam.climb(state.gradients.trial_groups())
        state.gradients.end_trial()
    paddle.set_rng_state(random)
    try:
        forward_backward(state, batch, hooks, functions, overlap=overlap)
    finally:
        with hooks("optimizer"):
            state.sam.descend()
    return sums


def train_step(
    state: TrainState,
    batch: Batch,
    hooks: StepHooks = NO_HOOKS,
    functions: StepFunctions = EAGER,
    *,
    overlap: bool = True,
) -> paddle.Tensor:
    """Trains on one batch, and updates the weights if the batch ends an update.

    Ranks exchange gradients only in the last step of an update. If loss scaling rejects an update because of
    a non-finite gradient, the weights stay unchanged, but the schedule and the moving average advance.

    Args:
        state: State of the run; changed in place.
        functions: Functions that launch the device work.
        overlap: Whether ranks exchange gradients during the backward pass, if ``state.network`` supports it,
            instead of after it.

    Returns:
        The result of `forward_backward`.
    """
    state.precision.begin_step()  # before the forward pass, which changes the statistics that it saves
    if state.masks is not None:
        state.masks.begin_step(state.update)
    passes = sharpness_aware_passes if _has_second_pass(state) else forward_backward
    sums = passes(state, batch, hooks, functions, overlap=overlap)
    if batch.update:
        overlapped = overlap and isinstance(state.network, paddle.DataParallel)
        if state.runtime.world_size > 1 and not overlapped:
            with hooks("all-reduce"):
                state.gradients.all_reduce()
        with hooks("optimizer"):
            # Updates count from 0 for the schedule, and the average counts finished ones. Both numbers are
            # set here, on the host, because a replayed graph of `apply_update` runs no Python.
            state.optimizer.set_lr(state.learning_rate(state.update))
            state.progress.update += 1
            if state.ema is not None:
                state.ema.prepare(state.update)
            state.precision.end_update(functions.apply_update(state))
    return sums


def _has_second_pass(state: TrainState) -> bool:
    """Returns whether the current batch has the second pass of SAM."""
    if state.sam is None:
        return False
    # The loader has moved on from the batch, to the start of the next epoch if the batch was the last one.
    return state.sam.begins_by(state.epoch + (state.step > 0))


def _mean_loss(state: TrainState, outputs: Outputs, batch: Batch) -> paddle.Tensor:
    """Returns the mean loss of the batch's valid samples."""
    if batch.valid == 0:
        return zero_loss(outputs)  # this rank must still take part in the exchange of gradients
    rows = batch.valid + 2 * batch.unlabelled
    return state.criterion(first_rows(outputs, rows), batch.label[: batch.valid])


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _sums(state: TrainState, outputs: Outputs, loss: paddle.Tensor, batch: Batch) -> paddle.Tensor:
    sums = (loss * batch.valid).astype("float32").reshape([1])
    if state.metrics is None:
        return sums
    if batch.valid == 0:
        return paddle.concat([sums, paddle.zeros([state.metrics.width])])
    rows = batch.valid + 2 * batch.unlabelled
    counts = state.metrics.counts(first_rows(outputs, rows), batch.label[: batch.valid])
    return paddle.concat([sums, counts.astype("float32")])

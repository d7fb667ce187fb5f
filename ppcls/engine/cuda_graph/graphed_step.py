"""Captures the device work of the training step as CUDA graphs, and replays them.

The captured functions are `forward_backward` and `apply_update` with the state of the run. The host part of
the step is `train_step`, as in eager execution, so the results equal those of eager steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import paddle
from paddle import nn, optimizer

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import NO_HOOKS, StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import (
    EAGER,
    StepFunctions,
    apply_update,
    forward_backward,
    train_step,
    update_weights,
)
from ppcls.engine.cuda_graph.flat_gradients import FlatGradients
from ppcls.engine.cuda_graph.graph import GraphCapture, Replayable

Capture = Callable[[Callable[[], None]], Replayable]

EAGER_UPDATES = 3  # updates before the capture, in which cuDNN searches kernels and memory is allocated
# Optimizers whose updates only launch kernels. Adam and its variants count updates on the host.
_CAPTURABLE = (optimizer.Momentum, optimizer.SGD)


class GraphedStep:
    """Executes `train_step` by replaying CUDA graphs.

    The first updates, and updates with a partial batch, run eagerly.

    Args:
        state: State of the run. Its network must not be wrapped, because the exchange of DataParallel cannot
            be captured.
        capture: Function that captures device work; None to capture CUDA graphs.

    Attributes:
        capture: Function that captures device work.
    """

    def __init__(self, state: TrainState, capture: Capture | None = None) -> None:
        self._state, self.capture = state, capture or GraphCapture()
        self._updates, self._within_update = 0, False
        self._graphs: _StepGraphs | None = None

    @property
    def captured(self) -> bool:
        """Whether the graphs exist. Once they exist, the addresses of the weights no longer change."""
        return self._graphs is not None

    def __call__(self, state: TrainState, batch: Batch, hooks: StepHooks = NO_HOOKS) -> paddle.Tensor:
        """Trains on one batch. See `train_step` for the arguments and the result."""
        assert state.progress is self._state.progress  # the same run
        full = self._is_full_batch(batch)
        if self._graphs is None and full and not self._within_update and self._updates >= EAGER_UPDATES:
            self._graphs = _StepGraphs(state, batch, self.capture)
        self._within_update = not batch.update
        self._updates += batch.update
        if self._graphs is None:
            return train_step(state, batch, hooks)
        flat = replace(state, gradients=self._graphs.gradients)
        return train_step(flat, batch, hooks, self._graphs.functions if full else EAGER)

    def _is_full_batch(self, batch: Batch) -> bool:
        """Returns whether all batches of the update are full on every rank. Equal on all ranks."""
        order = self._state.loader.order
        return batch.valid == order.batch_size and batch.weight == 1 / order.accumulate


class _StepGraphs:
    """Graphs of `forward_backward` and `apply_update`, which read batches from fixed memory.

    Args:
        state: State of the run.
        batch: A full batch, which defines shapes and dtypes.
        capture: Function that captures device work.

    Attributes:
        gradients: Flat buffers, which the graphs read and write instead of the state's gradients.
        functions: Functions that replay the graphs.
    """

    def __init__(self, state: TrainState, batch: Batch, capture: Capture) -> None:
        self._batch = replace(batch, image=batch.image.clone(), label=batch.label.clone())
        self._sums = paddle.zeros([1 + (0 if state.metrics is None else state.metrics.width)])
        self._overflow = paddle.zeros([1], "bool")
        loss_scale, order = state.precision.loss_scale, state.loader.order
        # Must precede the captures, because it can move the weights.
        self.gradients = FlatGradients(
            state.optimizer, loss_scale, order.accumulate, state.runtime.world_size
        )
        state = replace(state, gradients=self.gradients)
        state.precision.begin_step()  # host work, which must not be captured
        self._forward_backward = capture(lambda: _copy(forward_backward(state, self._batch), self._sums))
        if isinstance(state.optimizer, _CAPTURABLE) and state.optimizer._grad_clip is None:
            self._apply_update = capture(lambda: _copy(apply_update(state), self._overflow))
            apply: Callable[[TrainState], paddle.Tensor] = self._replay_update
        elif state.ema is not None:
            self._update_average = capture(state.ema.update)
            apply = self._replay_average
        else:
            apply = apply_update
        self.functions = StepFunctions(self._replay_forward_backward, apply)

    def _replay_forward_backward(
        self, _state: TrainState, batch: Batch, hooks: StepHooks = NO_HOOKS, *, overlap: bool = True
    ) -> paddle.Tensor:
        del overlap  # ranks exchange gradients after the replay
        with hooks("forward"):
            self._batch.image.copy_(batch.image, False)
            self._batch.label.copy_(batch.label, False)
        with hooks("backward"):
            self._forward_backward.replay()
        return self._sums.clone()

    def _replay_update(self, _state: TrainState) -> paddle.Tensor:
        self._apply_update.replay()
        return self._overflow.clone()

    def _replay_average(self, state: TrainState) -> paddle.Tensor:
        overflow: paddle.Tensor = update_weights(state)
        self._update_average.replay()
        return overflow


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _copy(source: paddle.Tensor, target: paddle.Tensor) -> None:
    target.copy_(source, False)


def draws_random_numbers(model: nn.Layer) -> bool:
    """Returns whether a model draws random numbers in training. Each replay would draw the same numbers."""
    return any("Drop" in type(layer).__name__ for layer in model.sublayers())

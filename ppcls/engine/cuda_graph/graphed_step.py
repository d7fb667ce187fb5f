"""The training step, recorded once and replayed.

It is `train_step` itself that is recorded, and the optimizer's update; what the host decides anew at each
step, such as the learning rate, stays outside. The numbers are those of `train_step`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import paddle
from paddle import nn, optimizer

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.flat_buffers import Flat
from ppcls.engine.core.hooks import UNTIMED, Phases
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.engine.cuda_graph.fused_momentum import FlatMomentum
from ppcls.engine.cuda_graph.graph import Recorded, Recorder
from ppcls.errors import UserError
from ppcls.optimizer.state import trained

Record = Callable[[Callable[[], None]], Recorded]

RECORDED_AFTER = 3  # updates: cuDNN's search, and all that is made at the first use
# Their steps are kernels and nothing else. Adam's family counts its steps on the host.
_RECORDABLE = (optimizer.Momentum, optimizer.SGD)


class CapturedStep:
    """A `train_step` by replaying; what is not usual goes through `train_step` itself.

    Unusual are the first updates, the last one of an epoch where it is smaller, and steps that somebody
    measures.

    Ranks exchange gradients between the two, all in one piece: DataParallel, which does so while backward
    runs, can't be recorded.

    Args:
        state: Changed in place by each step; its ranks exchange after backward (`TrainState.connect`).
        record: What records; by default CUDA graphs.
    """

    def __init__(self, state: TrainState, record: Record | None = None) -> None:
        self._state, self._record = state, record or Recorder()
        self._done, self._within = 0, False
        self._recording: _Recording | None = None

    def __call__(self, state: TrainState, batch: Batch, phases: Phases = UNTIMED) -> paddle.Tensor:
        """Takes one batch; arguments and result are those of `train_step`."""
        assert state is self._state
        if not phases.timed and self._usual(batch) and not (self._recording is None and self._within):
            if self._recording is None and self._done >= RECORDED_AFTER:
                self._recording = _Recording(state, batch, self._record)
            if self._recording is not None:
                return self._recording.train(batch, phases)
        self._within = not batch.update
        self._done += batch.update
        return train_step(state, batch, phases)

    def _usual(self, batch: Batch) -> bool:
        """Whether this is a batch of a whole update, on every rank: they must all choose the same way."""
        order = self._state.loader.order
        return batch.valid == order.batch_size and batch.weight == 1 / order.accumulate


class _Recording:
    """One batch's forward and backward pass, and the update, as recorded work on memory that stays."""

    def __init__(self, state: TrainState, batch: Batch, record: Record) -> None:
        self._state = state
        world = state.runtime.world_size
        self._alone = replace(state, runtime=replace(state.runtime, world_size=1))
        # The exchange below adds gradients up; an average is wanted.
        self._batch = replace(
            batch,
            image=batch.image.clone(),
            label=batch.label.clone(),
            weight=batch.weight / world,
            update=False,
        )
        self._weights = trained(state.optimizer)
        state.optimizer.clear_grad(set_to_zero=False)
        self._gradients = Flat(self._weights)
        accumulate = state.loader.order.accumulate
        self._summed = self._gradients if accumulate == 1 else Flat(self._weights)
        self._begun = False
        self._sums = paddle.zeros([1 + (0 if state.metrics is None else state.metrics.width)])
        self._found = paddle.zeros([1], "bool")
        state.precision.begin()  # not to be recorded: it comes once an update
        self._apply = self._updating()  # first, for it may move the weights
        self._compute = record(self._forward_backward)
        self._update = record(self._update_weights) if _recordable(state.optimizer) else None
        self._average = None if state.ema is None else record(state.ema.update)

    def train(self, batch: Batch, phases: Phases) -> paddle.Tensor:
        """Takes a batch of the recorded shapes; returns what `train_step` does."""
        with phases("forward"):
            self._batch.image.copy_(batch.image, False)
            self._batch.label.copy_(batch.label, False)
            self._state.precision.begin()
        with phases("backward"):
            self._compute.replay()
            if self._summed is not self._gradients:
                (self._summed.add if self._begun else self._summed.copy)(self._gradients)
        self._begun = not batch.update
        if batch.update:
            if self._state.runtime.world_size > 1:
                with phases("all-reduce"):
                    for buffer in self._summed.buffers:
                        paddle.distributed.all_reduce(buffer)
            with phases("optimizer"):
                self._end_update()
        return self._sums.clone()

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _end_update(self) -> None:
        state = self._state
        state.optimizer.set_lr(state.schedule(state.update))
        if self._update is None:
            self._update_weights()
        else:
            self._update.replay()
        state.precision.adapt(self._found.clone())
        state.update += 1
        if self._average is not None and state.ema is not None:
            state.ema.begin(state.update)
            self._average.replay()

    def _forward_backward(self) -> None:
        sums = train_step(self._alone, self._batch)
        gradients = []
        for weight in self._weights:
            if weight.grad is None:
                raise UserError(
                    f"the weight {weight.name} gets no gradient, so the step can't be recorded; "
                    "set Global.cuda_graph=False"
                )
            gradients.append(weight.grad)
        with paddle.no_grad():
            self._gradients.take(gradients)
            self._sums.copy_(sums, False)
        self._state.optimizer.clear_grad(set_to_zero=False)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _update_weights(self) -> None:
        state = self._state
        found = state.precision.update(state.optimizer, self._summed.buffers, self._apply)
        self._found.copy_(found, False)

    def _updating(self) -> Callable[[], None]:
        """Returns what updates the weights by the gradients."""
        made, gradients = self._state.optimizer, self._summed
        if _recordable(made) and type(made) is optimizer.Momentum and made.regularization is None:
            storage = self._state.precision.storage(made)
            return FlatMomentum(made, storage.window, gradients.window)
        pairs = list(zip(self._weights, gradients.views, strict=True))
        return lambda: made._apply_optimize(None, None, pairs)


def _recordable(made: optimizer.Optimizer) -> bool:
    return isinstance(made, _RECORDABLE) and made._grad_clip is None


def draws(model: nn.Layer) -> bool:
    """Whether a model draws random numbers as it trains; a recorded step would draw the same ones again."""
    return any("Drop" in type(layer).__name__ for layer in model.sublayers())

"""Captures the device work of the training step as CUDA graphs, and replays them.

There are three graphs: the forward pass of the network, its backward pass, and the update. With AMP O1 and
fused kernels, a fourth one rounds all weights to half precision, once per update. The network computes all
rows of a batch, so these graphs fit partial batches too. Loss and metrics use only the valid rows. They run
eagerly between the graphs, while the device is still busy with the forward pass. The host part of the step is
`train_step`, as in eager execution, so the results equal those of eager steps.

With several ranks, the graph of the backward pass has one part per group of gradients (`exchange_groups`).
After the start of a part, the host starts the exchange of the gradients that this part computes. The exchange
runs on a stream of its own, beside the next part. It is never captured.

With SAM, the first two graphs are replayed twice for each batch. The weights climb and descend eagerly
between the replays, by a few operators on flat buffers.

A replay would repeat random numbers that the network draws itself, for example by `paddle.rand` in a user's
architecture. Layers that draw are known before the run, but calls of functions are not. So the first forward
passes show whether Paddle's generator advances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import paddle
from paddle import optimizer

from ppcls.arch.fused.amp import rounded_weights
from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import NO_HOOKS, StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import (
    EAGER,
    StepFunctions,
    apply_update,
    forward,
    train_step,
    update_weights,
)
from ppcls.engine.cuda_graph.exchange_groups import ExchangeSettings
from ppcls.engine.cuda_graph.flat_gradients import FlatGradients
from ppcls.engine.cuda_graph.graph import Capture, GraphCapture, Replayable
from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.optimizer.paddle_optimizers import clipping_of
from ppcls.optimizer.state import trained
from ppcls.outputs import Outputs, as_list, map_outputs
from ppcls.runtime.collectives import all_gather

EAGER_UPDATES = 3  # updates before the capture, in which cuDNN searches kernels and memory is allocated
# Optimizers whose updates by Paddle only launch kernels. Adam and its variants count updates on the host.
# `FusedUpdate` can be captured with all optimizers that have a rule.
_CAPTURABLE = (optimizer.Momentum, optimizer.SGD)


class GraphedStep:
    """Executes `train_step` by replaying CUDA graphs. The first updates run eagerly.

    Args:
        state: State of the run. Its network must not be wrapped, because the exchange of DataParallel cannot
            be captured.
        capture: Function that captures device work; None to capture CUDA graphs.
        kernels: Whether the update may use the kernels of `ppcls.arch.fused`.
        required: Whether it is an error if the steps can't be captured. Otherwise, they stay eager.
        group_size: Size in bytes of the groups of gradients that ranks exchange during the backward pass;
            None to exchange all gradients after it.

    Attributes:
        capture: Function that captures device work.
    """

    def __init__(
        self,
        state: TrainState,
        capture: Capture | None = None,
        *,
        kernels: bool = False,
        required: bool = False,
        group_size: int | None = None,
    ) -> None:
        self._state = state
        self._kernels = kernels
        self._required = required
        self._group_size = group_size
        self._draws = False  # whether a forward pass drew random numbers
        self._eager = False
        self.capture = capture or GraphCapture()
        self._updates = 0
        self._within_update = False
        self._gradients: FlatGradients | None = None
        self._graphs: _StepGraphs | None = None

    @property
    def captured(self) -> bool:
        """Whether the graphs exist. Once they exist, the addresses of the weights no longer change."""
        return self._graphs is not None

    def __call__(
        self, state: TrainState, batch: Batch, hooks: StepHooks = NO_HOOKS, *, overlap: bool = True
    ) -> paddle.Tensor:
        """Trains on one batch. See `train_step` for the arguments and the result.

        Raises:
            UserError: The graphs are required, but the network draws random numbers.
        """
        assert state.progress is self._state.progress  # the same run
        if self._eager:
            return train_step(state, batch, hooks)
        if self._gradients is None and not self._within_update and self._updates >= EAGER_UPDATES:
            # All ranks do this in the same step, because ranks exchange flat gradients only with each other.
            if self._stay_eager():
                return train_step(state, batch, hooks)
            self._gradients = FlatGradients(
                state.optimizer,
                state.precision.loss_scale,
                state.loader.order.accumulate,
                ExchangeSettings(state.runtime.world_size, self._group_size),
                kernels=self._kernels,
                trials=state.sam is not None,
            )
        begins_update = not self._within_update
        self._within_update = not batch.update
        self._updates += batch.update
        if self._gradients is None:
            return train_step(state, batch, hooks, replace(EAGER, forward=self._watch_forward))
        self._gradients.exchanging = overlap and batch.update
        flat = replace(state, gradients=self._gradients)
        if self._graphs is None and batch.valid:  # without valid rows, not each loss has a gradient
            self._graphs = _StepGraphs(
                flat, self._gradients, batch.image, self.capture, self._weight_rounding()
            )
        if self._graphs is None:
            return train_step(flat, batch, hooks)
        if begins_update:
            self._graphs.weights_changed = True
        return train_step(flat, batch, hooks, self._graphs.functions)

    def _watch_forward(self, state: TrainState, image: paddle.Tensor) -> Outputs:
        before = paddle.get_rng_state()
        outputs = forward(state, image)
        after = paddle.get_rng_state()
        numbers = []
        for generator in (before, after):  # states can't be compared, but what they draw
            paddle.set_rng_state(generator)
            numbers.append(paddle.rand([4]).numpy())
        paddle.set_rng_state(after)
        self._draws |= not np.array_equal(*numbers)
        return outputs

    def _stay_eager(self) -> bool:
        """Returns whether the network of any rank draws random numbers, and reports it."""
        world = self._state.runtime.world_size
        self._eager = any(draws.item() for draws in all_gather(np.array([self._draws]), world))
        if self._eager:
            name = self._state.config.Arch.name
            reason = f"{name} draws random numbers during training, which each replay would repeat"
            if self._required:
                raise UserError(f"Global.cuda_graph: {reason}; set this key to auto or False")
            if self._state.runtime.is_main:
                print_error(f"no CUDA graph: {reason}")
        return self._eager

    def _weight_rounding(self) -> str | None:
        """Returns the dtype to which the fused layers round the weights; None if they don't share copies."""
        shared = self._kernels and self._gradients is not None and self._gradients.can_round
        return self._state.precision.weight_rounding if shared else None


class _StepGraphs:
    """Graphs of the functions of a step. Each is captured when it is first used.

    Args:
        state: State of the run.
        flat: Gradients of the state, whose addresses never change.
        image: Images of a batch, which define shape and dtype.
        capture: Function that captures device work.
        weight_rounding: Dtype of copies of all weights, which fused layers share; None for no copies.

    Attributes:
        functions: Functions that replay the graphs.
        weights_changed: Whether the weights may differ from their copies. The first step of each update sets
            it, because updates, evaluations and hooks come before this step.
    """

    def __init__(
        self,
        state: TrainState,
        flat: FlatGradients,
        image: paddle.Tensor,
        capture: Capture,
        weight_rounding: str | None,
    ) -> None:
        self._state = state
        self._flat = flat
        self.weights_changed = True
        self._weight_rounding = weight_rounding
        self._copies: list[tuple[paddle.Tensor, paddle.Tensor]] = []  # weights, each with its copy
        self._image = image.clone()
        self._outputs: Outputs  # of the captured forward pass
        # The current loss depends on these copies of the outputs, and on trained weights of the loss itself.
        self._leaves: Outputs
        self._loss_weights: list[paddle.Tensor] = []
        self._gradients: list[paddle.Tensor | None] = []  # of leaves and weights, None without a gradient
        self._overflow: paddle.Tensor
        self._rounding = _LazyGraph(self._run_rounding, capture)
        self._forward = _LazyGraph(self._run_forward, capture)
        self._backward = _LazyGraph(self._run_backward, capture)
        apply: Callable[[TrainState], paddle.Tensor] = apply_update
        plain = isinstance(state.optimizer, _CAPTURABLE) and clipping_of(state.optimizer) is None
        if state.gradients.fused or plain:
            self._update = _LazyGraph(self._run_update, capture)
            apply = self._replay_update
        elif state.ema is not None:
            self._update = _LazyGraph(state.ema.update, capture)
            apply = self._replay_average
        self.functions = StepFunctions(self._replay_forward, self._replay_backward, apply)

    def _replay_forward(self, _state: TrainState, image: paddle.Tensor) -> Outputs:
        """Returns the outputs as leaves, at which the backward pass of the loss ends."""
        self._image.copy_(image, False)
        # Between the two forward passes of a step with SAM, the weights move.
        if self._weight_rounding is not None and (self.weights_changed or self._state.sam is not None):
            self._rounding.replay()
            self.weights_changed = False
        self._forward.replay()
        self._leaves = _as_leaves(self._outputs)
        return self._leaves

    def _run_rounding(self) -> None:
        assert self._weight_rounding is not None
        self._copies = self._flat.rounded_weights(self._weight_rounding)

    def _run_forward(self) -> None:
        with rounded_weights(self._copies):
            self._outputs = forward(self._state, self._image)

    def _replay_backward(self, state: TrainState) -> None:
        """Starts the backward pass at the gradients of the loss."""
        if not self._gradients:
            self._loss_weights = [weight for weight in trained(state.optimizer) if weight.grad is not None]
        self._keep_loss_gradients([*_distinct(self._leaves), *self._loss_weights])
        for weight in self._loss_weights:
            weight.clear_gradient(set_to_zero=False)
        self._backward.replay()

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _keep_loss_gradients(self, tensors: Sequence[paddle.Tensor]) -> None:
        gradients = [tensor.grad for tensor in tensors]
        if not self._gradients:
            self._gradients = [None if gradient is None else gradient.clone() for gradient in gradients]
        for gradient, memory in zip(gradients, self._gradients, strict=True):
            if memory is not None and gradient is not None:
                memory.copy_(gradient, False)
            elif memory is not None:
                memory.zero_()  # the batch has no valid rows

    def _run_backward(self) -> None:
        starts = [*_distinct(self._outputs), *self._loss_weights]
        pairs = [pair for pair in zip(starts, self._gradients, strict=True) if pair[1] is not None]
        with self._flat.collecting():
            paddle.autograd.backward(*(list(part) for part in zip(*pairs, strict=True)))
        self._outputs = _as_leaves(self._outputs)  # frees what layers stored

    def _replay_update(self, _state: TrainState) -> paddle.Tensor:
        self._update.replay()
        return self._overflow.clone()

    def _run_update(self) -> None:
        self._overflow = apply_update(self._state)

    def _replay_average(self, state: TrainState) -> paddle.Tensor:
        overflow: paddle.Tensor = update_weights(state)
        self._update.replay()
        return overflow


def _as_leaves(outputs: Outputs) -> Outputs:
    """Returns tensors with the memory of ``outputs``, at which a backward pass ends."""
    leaves: dict[int, paddle.Tensor] = {}

    def leaf(output: paddle.Tensor) -> paddle.Tensor:
        if id(output) not in leaves:
            leaves[id(output)] = output.detach()
            leaves[id(output)].stop_gradient = output.stop_gradient
        return leaves[id(output)]

    return map_outputs(outputs, leaf)


def _distinct(outputs: Outputs) -> list[paddle.Tensor]:
    """Returns the tensors of ``outputs``, without repeating a tensor that has two names."""
    return list({id(output): output for output in as_list(outputs)}.values())


class _LazyGraph:
    """A graph of ``work`` that is captured when it is first replayed."""

    def __init__(self, work: Callable[[], None], capture: Capture) -> None:
        self._work = work
        self._capture = capture
        self._graph: Replayable | None = None

    def replay(self) -> None:
        """Runs the work once."""
        if self._graph is None:
            self._graph = self._capture(self._work)
        self._graph.replay()

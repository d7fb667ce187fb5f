"""Stores gradients in flat buffers, and updates flat weights with Momentum in a few operators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from typing import Any

import paddle
from paddle import Tensor, _C_ops, optimizer
from paddle.regularizer import L2Decay

from ppcls.engine.core.flat_buffers import FlatBuffers
from ppcls.engine.core.gradients import TrialGroup, any_nonfinite
from ppcls.engine.core.loss_scale import LossScale
from ppcls.engine.cuda_graph.exchange_groups import ExchangeGroup, ExchangeSettings, divide_into_groups
from ppcls.engine.cuda_graph.fused_update import FusedUpdate
from ppcls.engine.cuda_graph.graph import cut
from ppcls.engine.cuda_graph.update_rules import find_rule
from ppcls.errors import UserError
from ppcls.optimizer.paddle_optimizers import (
    apply_gradients,
    clipping_of,
    coefficient_of,
    learning_rate_tensor,
    master_weights_of,
    momentum_decay,
    momentum_rule,
    parameter_rate,
    parameters_of,
)
from ppcls.optimizer.state import changed_by_step, trained, treatment

GetWindow = Callable[[int, int], Tensor]


class FlatGradients:
    """Gradients of an update in one buffer per dtype. The addresses of the buffers never change.

    This is a `ppcls.engine.core.gradients.GradientStore` with operators that a CUDA graph can capture.
    Weights and optimizer state also move into flat buffers if `FusedUpdate` or `FusedMomentum` supports the
    optimizer, or for trials.

    Args:
        loss_scale: Loss scale of the run; None without loss scaling.
        accumulate: Number of steps per update.
        exchange: How ranks exchange the gradients.
        kernels: Whether the kernels of `FusedUpdate` may be used.
        trials: Whether each step has a trial (`begin_trial`).

    Attributes:
        fused: Whether the update is a `FusedUpdate`.
        exchanging: Whether backward passes in `collecting` start the exchange of gradients, which
            `all_reduce` completes. Backward passes of trials never start it.
    """

    def __init__(
        self,
        optimizer: optimizer.Optimizer,
        loss_scale: LossScale | None,
        accumulate: int,
        exchange: ExchangeSettings,
        kernels: bool = False,
        trials: bool = False,
    ) -> None:
        self.loss_factor = 1.0 / exchange.world  # `all_reduce` sums
        self.exchanging = False
        self._optimizer = optimizer
        self._weights = trained(optimizer)
        optimizer.clear_grad(set_to_zero=False)
        self._total = FlatBuffers(self._weights)
        self._addend = FlatBuffers(self._weights) if accumulate > 1 else None
        self._earlier = FlatBuffers(self._weights) if accumulate > 1 and trials else None
        self._groups = self._divide(exchange.group_size if exchange.world > 1 else None)
        self._tasks: list[list[Any]] = []  # running exchanges of the first groups
        self._in_trial = False
        self._trial_groups: list[TrialGroup] = []
        self._momentum: FusedMomentum | None = None
        self._update: FusedUpdate | None = None
        self._state: FlatBuffers | None = None
        rule = find_rule(optimizer) if kernels else None
        self.fused = rule is not None
        fusible = is_fusible(optimizer)
        if self.fused or fusible or trials:
            if loss_scale is None:
                state = FlatBuffers(changed_by_step(optimizer))
                state.adopt()
            else:
                state = loss_scale.snapshot(optimizer).flat
            self._state = state
            windows = (state.window, self._total.window)
            if rule is not None:
                self._update = FusedUpdate(optimizer, rule, *windows, self._total.buffers)
            elif fusible:
                self._momentum = FusedMomentum(optimizer, *windows)
            if trials:
                self._trial_groups = self._make_trial_groups(*windows)
        self._pairs = list(zip(self._weights, self._total.views, strict=True))

    def rounded_weights(self, dtype: str) -> list[tuple[Tensor, Tensor]]:
        """Returns the trained float32 weights, each with a copy in ``dtype``. One operator makes all copies.

        Only for gradients with `can_round`.
        """
        assert self._state is not None
        first, last = self._float32_places[0], self._float32_places[-1]
        copies = self._state.cast(first, last, dtype)
        return list(zip(self._weights[first : last + 1], copies, strict=True))

    @property
    def can_round(self) -> bool:
        """Whether there are trained float32 weights, and they are in a flat buffer."""
        return self._state is not None and bool(self._float32_places)

    @property
    def _float32_places(self) -> list[int]:
        # neighbors, because `trained` sorts by dtype
        return [place for place, weight in enumerate(self._weights) if weight.dtype == paddle.float32]

    def _divide(self, group_size: int | None) -> list[ExchangeGroup]:
        weights = [weight for weight in parameters_of(self._optimizer) if not weight.stop_gradient]
        place_of = {weight.name: place for place, weight in enumerate(self._weights)}
        groups = []
        for group in divide_into_groups(weights, group_size):
            places = [place_of[weight.name] for weight in group]
            groups.append(ExchangeGroup(self._weights, places, self._total, self._addend))
        return groups

    def _make_trial_groups(self, state: GetWindow, gradients: GetWindow) -> list[TrialGroup]:
        """Returns a group for each dtype of weights. The arguments are those of `FusedMomentum`."""
        weights = self._weights
        masters = master_weights_of(self._optimizer)
        halves = [place for place, weight in enumerate(weights) if weight.name in masters]
        groups = []
        for _, group in groupby(range(len(weights)), lambda place: weights[place].dtype):
            places = list(group)
            first = places[0]
            last = places[-1]
            weight = exact = state(first, last)
            if first in halves:
                master = len(weights) + halves.index(first)
                exact = state(master, master + last - first)
            groups.append(TrialGroup(weight, exact, gradients(first, last)))
        return groups

    def begin_trial(self) -> None:
        """Sets the gradients of earlier steps aside until `end_trial`."""
        self._in_trial = True
        if self._earlier is not None:
            self._earlier.copy(self._total)
            self._total.zero()

    def trial_groups(self) -> list[TrialGroup]:
        """Returns all trained weights with their gradients since `begin_trial`, in one group per dtype."""
        return self._trial_groups

    def end_trial(self) -> None:
        """Restores the gradients that were set aside. Without earlier steps, `collect` replaces gradients."""
        self._in_trial = False
        if self._earlier is not None:
            self._total.copy(self._earlier)

    def collect(self) -> None:
        """Adds the gradients of the last backward pass to the buffers, and frees ``parameter.grad``.

        Raises:
            UserError: A weight has no gradient.
        """
        self._collect_rest(self._groups)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Returns a context for a backward pass, whose gradients it collects.

        It collects a group of gradients as soon as the backward pass has computed them, and then starts the
        exchange of the group at a `cut`. All ranks exchange the groups in the same order.

        Raises:
            UserError: A weight has no gradient.
        """
        waiting = deque(self._groups)
        computed: dict[int, Tensor] = {}

        def add(place: int, gradient: Tensor) -> None:
            computed[place] = gradient
            # The last group needs no cut, because `all_reduce` exchanges it after the backward pass.
            while len(waiting) > 1 and waiting[0].is_complete(computed):
                waiting.popleft().collect(computed)
                cut(self._start_exchange)

        # Paddle calls a hook once per backward pass, with the whole gradient of the weight.
        hooked = self._weights if len(waiting) > 1 else []
        hooks = [weight.register_hook(partial(add, place)) for place, weight in enumerate(hooked)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self._collect_rest(waiting)

    def _collect_rest(self, groups: Iterable[ExchangeGroup]) -> None:
        """Collects the gradients of groups that have not been collected, and frees all ``parameter.grad``."""
        gradients = {}
        for place, weight in enumerate(self._weights):
            if weight.grad is None:
                raise UserError(
                    f"the weight {weight.name} has no gradient, so the step cannot be captured; "
                    "set Global.cuda_graph=False"
                )
            gradients[place] = weight.grad
        for group in groups:
            group.collect(gradients)
        self._optimizer.clear_grad(set_to_zero=False)

    def _start_exchange(self) -> None:
        """Starts the exchange of the next group, if the current backward pass ends an update."""
        if self.exchanging and not self._in_trial:
            self._tasks.append(self._groups[len(self._tasks)].start_exchange())

    def all_reduce(self) -> None:
        """Sums the gradients over the ranks. The factor `loss_factor` on the loss makes the sum a mean.

        Exchanges the groups whose exchange has not started, and waits for all groups. On a GPU, only the
        device waits.
        """
        for group in self._groups[len(self._tasks) :]:
            self._tasks.append(group.start_exchange())
        for task in chain.from_iterable(self._tasks):
            task.wait()
        self._tasks = []

    def unscale(self, scale: Tensor) -> Tensor:
        """Divides the gradients by ``scale``, [1] float32; returns whether any is non-finite, [1] bool.

        Does not use Paddle's operator for many gradients. That operator makes the device read a list in host
        memory, and the list no longer exists when a graph is replayed.
        """
        inverse = 1.0 / scale
        for buffer in self._total.buffers:
            buffer.copy_((buffer.astype("float32") * inverse).astype(buffer.dtype), False)
        return any_nonfinite(self._total.buffers)

    def any_nonfinite(self) -> Tensor:
        """Returns whether a gradient is non-finite, [1] bool."""
        return any_nonfinite(self._total.buffers)

    def apply(self) -> None:
        """Updates the weights with the gradients."""
        if self._momentum is not None:
            self._momentum()
        else:
            apply_gradients(self._optimizer, self._pairs)

    def apply_scaled(self, scale: Tensor | None) -> Tensor:
        """Updates the weights by `FusedUpdate`."""
        assert self._update is not None
        return self._update(scale)

    def clear(self) -> None:
        """Sets the gradients to zero if the steps of the next update add to them."""
        if self._addend is not None:
            self._total.zero()


def is_fusible(candidate: optimizer.Optimizer) -> bool:
    """Returns whether `FusedMomentum` can replace the update of an optimizer."""
    return (
        type(candidate) is optimizer.Momentum
        and clipping_of(candidate) is None
        and candidate.regularization is None
    )


class FusedMomentum:
    """Update of a `paddle.optimizer.Momentum` without clipping, with one operator per group of weights.

    The results equal those of Paddle's update, which uses one kernel per weight. ResNet-50 has 161 weights,
    and a GPU needs more time to start and end so many kernels than for their computation: an update took 0.36
    ms, and takes 0.15 ms. Paddle's own merged update (``use_multi_tensor``) made no difference.

    Args:
        momentum: Optimizer whose update this replaces.
        state: Function that returns the memory of consecutive tensors of
            `ppcls.optimizer.state.changed_by_step`, from the first to the last index.
        gradients: Function that returns the memory of the gradients of consecutive weights of
            `ppcls.optimizer.state.trained`, from the first to the last index.
    """

    def __init__(self, momentum: optimizer.Momentum, state: GetWindow, gradients: GetWindow) -> None:
        self._momentum = momentum
        learning_rate_tensor(momentum)  # creates it, which Paddle would do in the first step
        weights = trained(momentum)
        masters_by_name = master_weights_of(momentum)
        halves = [place for place, weight in enumerate(weights) if weight.name in masters_by_name]
        self._groups: list[tuple[Tensor, tuple[Tensor | None, ...], tuple[Any, ...]]] = []
        for _, group in groupby(range(len(weights)), lambda place: treatment(weights[place])):
            places = list(group)
            first = places[0]
            last = places[-1]
            like = weights[places[0]]
            master = None
            velocity = len(weights) + len(halves)
            if first in halves:
                masters = len(weights) + halves.index(first)
                master = state(masters, masters + last - first)
            tensors = (
                state(first, last),
                gradients(first, last),
                state(velocity + first, velocity + last),
                master,
            )
            self._groups.append((like, tensors, _weight_decay(momentum, like)))

    def __call__(self) -> None:
        """Updates the weights."""
        momentum = self._momentum
        settings = momentum_rule(momentum)
        for like, (weight, gradient, velocity, master), decay in self._groups:
            rate = parameter_rate(momentum, (like, gradient))
            rule = (settings.momentum, settings.nesterov, *decay, master is not None, settings.rescale)
            # No public function updates many weights at once: `Momentum.step` calls this once per weight.
            _C_ops.momentum_(weight, gradient, velocity, rate, master, *rule)


def _weight_decay(momentum: optimizer.Momentum, weight: Tensor) -> tuple[str, float]:
    """Returns the kind and the factor of a weight's decay.

    A regularizer of the weight takes precedence over the regularization of the optimizer.
    """
    if isinstance(weight.regularizer, L2Decay):
        return "l2_decay", coefficient_of(weight.regularizer)
    return momentum_decay(momentum)

"""Updates flat weights with AdamW, SGD or Momentum, in one kernel per group of weights with equal settings.

A kernel also divides the gradients by the loss scale, clips them to a global norm, and changes nothing after
an overflow. Paddle needs an operator per weight for the update alone, and separate passes over all gradients
and over the optimizer's state for the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import paddle
from paddle import Tensor, nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.arch.fused.cuda import Kernels, address, kernels, vector_length
from ppcls.optimizer.functional import AdamWPerParameter
from ppcls.optimizer.paddle_optimizers import (
    adam_rule,
    clipping_of,
    coefficient_of,
    learning_rate_tensor,
    master_weights_of,
    momentum_rule,
    optimizer_decay,
    power_kinds,
)
from ppcls.optimizer.state import accumulators, trained, treatment

_THREADS = 256  # threads per block; the same number as THREADS in update.cu
_BLOCKS_PER_MULTIPROCESSOR = 8
_SOURCE = "update.cu"

GetWindow = Callable[[int, int], Tensor]


def supports(candidate: optimizer.Optimizer) -> bool:
    """Returns whether `FusedUpdate` can replace the update of an optimizer."""
    clip = clipping_of(candidate)
    weights = trained(candidate)
    decays = [weight.regularizer for weight in weights]
    return (
        type(candidate) in (optimizer.SGD, optimizer.Momentum, AdamWPerParameter)
        and (clip is None or type(clip) is nn.ClipGradByGlobalNorm)
        and (clip is None or all(weight.need_clip for weight in weights))
        and (candidate.regularization is None or isinstance(candidate.regularization, L2Decay))
        and all(decay is None or isinstance(decay, L2Decay) for decay in decays)
        and not (isinstance(candidate, AdamWPerParameter) and not _equal_powers(candidate))
    )


def _equal_powers(adamw: optimizer.AdamW) -> bool:
    """Returns whether all weights had the same number of updates."""
    return all(len({power.item() for power in accumulators(adamw, kind)}) == 1 for kind in power_kinds(adamw))


@dataclass(frozen=True)
class _Group:
    """Weights with the same settings.

    Attributes:
        weight: Weights, flat.
        master: Their float32 values if the weights are in half precision, else None.
        gradient: Gradients, flat.
        moments: Flat accumulators with the shapes of the weights.
        factor: Factor of the learning rate.
        decay: Weight decay.
    """

    weight: Tensor
    master: Tensor | None
    gradient: Tensor
    moments: tuple[Tensor, ...]
    factor: float
    decay: float


class FusedUpdate:
    """The update of an optimizer that `supports` accepts.

    Args:
        optimizer: Optimizer whose update this replaces.
        state: Function that returns the memory of consecutive tensors of
            `ppcls.optimizer.state.changed_by_step`, from the first to the last index.
        gradients: Function that returns the memory of the gradients of consecutive weights of
            `ppcls.optimizer.state.trained`, from the first to the last index.
        buffers: All gradients, one flat buffer per dtype.
    """

    def __init__(
        self,
        optimizer: optimizer.Optimizer,
        state: GetWindow,
        gradients: GetWindow,
        buffers: Sequence[Tensor],
    ) -> None:
        self._optimizer = optimizer
        self._rate = learning_rate_tensor(optimizer)
        clip = clipping_of(optimizer)
        self._most = 0.0 if clip is None else float(clip.clip_norm)
        self._buffers = list(buffers)
        self._kernels = {buffer.dtype: kernels(_SOURCE, buffer.dtype) for buffer in self._buffers}
        self._multiplier = paddle.ones([1])
        self._overflow = paddle.zeros([1], "bool")
        self._groups: list[_Group] = []
        self._powers: tuple[Tensor, ...] = ()
        self._make_groups(state, gradients)

    def _make_groups(self, state: GetWindow, gradients: GetWindow) -> None:
        weights = trained(self._optimizer)
        masters = master_weights_of(self._optimizer)
        halves = [place for place, weight in enumerate(weights) if weight.name in masters]
        count = len(weights)
        start = count + len(halves)  # index of the first accumulator
        moments = 0
        if isinstance(self._optimizer, optimizer.Momentum):
            moments = 1
        elif isinstance(self._optimizer, optimizer.AdamW):
            moments = 2
            first = start + moments * count
            self._powers = (state(first, first + count - 1), state(first + count, first + 2 * count - 1))
        for _, group in groupby(range(count), lambda place: treatment(weights[place])):
            places = list(group)
            first = places[0]
            last = places[-1]
            master = None
            if first in halves:
                index = count + halves.index(first)
                master = state(index, index + last - first)
            kinds = [start + kind * count for kind in range(moments)]
            self._groups.append(
                _Group(
                    state(first, last),
                    master,
                    gradients(first, last),
                    tuple(state(kind + first, kind + last) for kind in kinds),
                    weights[first].optimize_attr["learning_rate"],
                    self._decay(weights[first]),
                )
            )

    def _decay(self, weight: Tensor) -> float:
        if isinstance(self._optimizer, AdamWPerParameter):
            return float(self._optimizer.decays[weight.name])
        # A regularizer of the weight takes precedence over the regularization of the optimizer.
        if weight.regularizer is not None:
            return coefficient_of(weight.regularizer)
        return optimizer_decay(self._optimizer)

    def __call__(self, scale: Tensor | None) -> Tensor:
        """Updates the weights with the gradients.

        Args:
            scale: Loss scale, [1] float32. With a loss scale, an update with a non-finite gradient changes
                nothing; with None, it is applied.

        Returns:
            Whether a gradient is non-finite, [1] bool.
        """
        self._measure(scale)
        overflow = address(None if scale is None else self._overflow)
        for group in self._groups:
            self._update(group, overflow)
        if self._powers:
            betas = adam_rule(self._optimizer)[:2]
            for powers, beta in zip(self._powers, map(ctypes.c_float, betas), strict=True):
                self._launch("advance_powers", powers.size, None, address(powers), overflow, beta)
        return self._overflow

    def _measure(self, scale: Tensor | None) -> None:
        """Computes what the gradients are multiplied by, and whether one of them is non-finite."""
        grids = [self._grid(self._vectors(buffer), buffer.dtype) for buffer in self._buffers]
        partial = paddle.empty([sum(grids)])
        place = 0
        for buffer, grid in zip(self._buffers, grids, strict=True):
            count = ctypes.c_int(self._vectors(buffer))
            sums = ctypes.c_void_p(partial.data_ptr() + 4 * place)
            self._kernels[buffer.dtype].launch(
                "sum_squares", (grid, 1), (_THREADS, 1), address(buffer), sums, count
            )
            place += grid
        operands = address(partial), ctypes.c_int(place), address(scale), ctypes.c_float(self._most)
        results = address(self._multiplier), address(self._overflow)
        self._any_kernels().launch("finish_squares", (1, 1), (_THREADS, 1), *operands, *results)

    def _update(self, group: _Group, overflow: ctypes.c_void_p) -> None:
        tensors = [address(tensor) for tensor in (group.weight, group.master, group.gradient)]
        tensors += [address(moment) for moment in group.moments]
        shared = (address(self._rate), address(self._multiplier), overflow, ctypes.c_float(group.factor))
        decay = ctypes.c_float(group.decay)
        update = self._optimizer
        count = self._vectors(group.weight)
        dtype = group.weight.dtype
        if isinstance(update, optimizer.AdamW):
            powers = map(address, self._powers)
            rule = map(ctypes.c_float, adam_rule(update))
            operands = (*tensors, *powers, *shared, *rule, decay)
            self._launch("adamw", count, dtype, *operands)
            return
        settings = momentum_rule(update)
        momentum = ctypes.c_float(settings.momentum)
        nesterov = ctypes.c_int(settings.nesterov)
        if not group.moments:
            tensors.append(address(None))
        operands = (*tensors, *shared, momentum, decay, nesterov)
        self._launch("momentum", count, dtype, *operands)

    def _launch(self, kernel: str, count: int, dtype: paddle.dtype | None, *arguments: Any) -> None:
        """Launches a kernel for ``count`` vectors of a dtype, or numbers if ``dtype`` is None."""
        library = self._any_kernels() if dtype is None else self._kernels[dtype]
        grid = (self._grid(count, dtype or self._buffers[0].dtype), 1)
        library.launch(kernel, grid, (_THREADS, 1), *arguments, ctypes.c_int(count))

    def _any_kernels(self) -> Kernels:
        return self._kernels[self._buffers[0].dtype]

    def _grid(self, vectors: int, dtype: paddle.dtype) -> int:
        most = _BLOCKS_PER_MULTIPROCESSOR * self._kernels[dtype].multiprocessors
        return min(most, -(-vectors // _THREADS))

    @staticmethod
    def _vectors(flat: Tensor) -> int:
        """Returns the number of vectors of flat memory. Padding follows a last vector that is not full."""
        return -(-int(flat.size) // vector_length(flat.dtype))

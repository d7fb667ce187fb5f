"""Updates flat weights in one to three kernels per group of weights with equal settings.

The kernels also divide the gradients by the loss scale, clip them to a global norm, and change nothing after
an overflow. Paddle needs an operator per weight for the update alone, and separate passes over all gradients
and over the optimizer's state for the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import paddle
from paddle import Tensor, optimizer

from ppcls.arch.fused.cuda import Kernels, address, kernels, vector_length
from ppcls.engine.core.flat_buffers import ALIGNMENT
from ppcls.engine.cuda_graph.matrix_update import MatrixUpdate
from ppcls.engine.cuda_graph.update_rules import KernelLaunch, Rule, Work, stored_kinds
from ppcls.optimizer.paddle_optimizers import (
    clipping_of,
    coefficient_of,
    learning_rate_tensor,
    master_weights_of,
    optimizer_decay,
)
from ppcls.optimizer.state import accumulator, changed_by_step, is_hidden_matrix, trained, treatment

_THREADS = 256  # threads per block; the same number as THREADS in update.cu
_PARTS = 16  # blocks per weight in kernels that need its norm; the same number as PARTS in update.cu
_BLOCKS_PER_MULTIPROCESSOR = 8
_SOURCE = "update.cu"

GetWindow = Callable[[int, int], Tensor]


@dataclass(frozen=True)
class _Group:
    """Weights with the same settings.

    Attributes:
        weight: Weights, flat.
        master: Their float32 values if the weights are in half precision, else None.
        gradient: Gradients, flat.
        stored: Flat stored tensors with the shapes of the weights, then flat stored numbers of each weight.
        factor: Factor of the learning rate.
        decay: Weight decay.
        starts: Position of each weight in ``weight`` in vectors, [weights] int32; None without norms.
        sizes: Size of each weight in vectors, [weights] int32; None without norms.
        partial: Memory for sums of the kernels that need norms, [weights, parts, 2]; None without norms.
    """

    weight: Tensor
    master: Tensor | None
    gradient: Tensor
    stored: tuple[Tensor, ...]
    factor: float
    decay: float
    starts: Tensor | None = None
    sizes: Tensor | None = None
    partial: Tensor | None = None


class FusedUpdate:
    """The update of an optimizer that has a rule.

    Args:
        optimizer: Optimizer whose update this replaces.
        rule: Result of `find_rule`.
        state: Function that returns the memory of consecutive tensors of
            `ppcls.optimizer.state.changed_by_step`, from the first to the last index.
        gradients: Function that returns the memory of the gradients of consecutive weights of
            `ppcls.optimizer.state.trained`, from the first to the last index.
        buffers: All gradients, one flat buffer per dtype.
    """

    def __init__(
        self,
        optimizer: optimizer.Optimizer,
        rule: Rule,
        state: GetWindow,
        gradients: GetWindow,
        buffers: Sequence[Tensor],
    ) -> None:
        self._optimizer = optimizer
        self._rule = rule
        self._launches = rule.launches(optimizer)
        self._rate = learning_rate_tensor(optimizer)
        clip = clipping_of(optimizer)
        self._most = 0.0 if clip is None else float(clip.clip_norm)
        self._buffers = list(buffers)
        self._kernels = {buffer.dtype: kernels(_SOURCE, buffer.dtype) for buffer in self._buffers}
        self._multiplier = paddle.ones([1])
        self._overflow = paddle.zeros([1], "bool")
        self._groups: list[_Group] = []
        matrices = self._make_groups(state, gradients)
        self._matrices = MatrixUpdate(optimizer, matrices) if matrices else None

    def _make_groups(self, state: GetWindow, gradients: GetWindow) -> list[tuple[Tensor, Tensor]]:
        """Makes the groups, and returns the hidden matrices, each with its flat gradient."""
        weights = trained(self._optimizer)
        masters = master_weights_of(self._optimizer)
        index = {id(tensor): place for place, tensor in enumerate(changed_by_step(self._optimizer))}
        kinds = stored_kinds(self._optimizer)
        with_norms = any(launch.work is Work.TENSORS for launch in self._launches)
        matrices: list[tuple[Tensor, Tensor]] = []

        def window(first: Tensor, last: Tensor) -> Tensor:
            return state(index[id(first)], index[id(last)])

        for _, members in groupby(range(len(weights)), lambda place: treatment(weights[place])):
            places = list(members)
            first = weights[places[0]]
            last = weights[places[-1]]
            if is_hidden_matrix(first):
                matrices += [(weights[place], gradients(place, place)) for place in places]
                continue
            stored = [[accumulator(self._optimizer, kind, end) for end in (first, last)] for kind in kinds]
            group = _Group(
                window(first, last),
                window(masters[first.name], masters[last.name]) if first.name in masters else None,
                gradients(places[0], places[-1]),
                tuple(window(*ends) for ends in stored),
                first.optimize_attr["learning_rate"],
                self._decay(first),
            )
            if with_norms:
                group = _with_norms(group, [weights[place] for place in places])
            self._groups.append(group)
        return matrices

    def _decay(self, weight: Tensor) -> float:
        if (decays := getattr(self._optimizer, "decays", None)) is not None:
            return float(decays[weight.name])
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
            for launch in self._launches:
                self._launch(launch, group, overflow)
        if self._matrices is not None:
            self._matrices(self._multiplier, None if scale is None else self._overflow)
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

    def _launch(self, launch: KernelLaunch, group: _Group, overflow: ctypes.c_void_p) -> None:
        tensors = [address(tensor) for tensor in group.stored]
        if launch.work is Work.NUMBERS:
            tensors = tensors[self._rule.kinds :]
        else:
            missing = [address(None)] * self._rule.missing
            weights = [address(tensor) for tensor in (group.weight, group.master, group.gradient)]
            tensors = [*weights, *tensors, *missing]
        shared = (address(self._rate), address(self._multiplier), overflow)
        settings = map(ctypes.c_float, (group.factor, group.decay, *launch.settings))
        operands = (*tensors, *shared, *settings)
        dtype = group.weight.dtype
        library = self._kernels[dtype]
        if launch.work is Work.TENSORS:
            assert group.partial is not None
            rows = [address(tensor) for tensor in (group.partial, group.starts, group.sizes)]
            grid = (_PARTS, group.partial.shape[0])
            library.launch(launch.kernel, grid, (_THREADS, 1), *operands, *rows)
            return
        count = self._vectors(group.weight)
        if launch.work is Work.NUMBERS:
            count = int(group.stored[-1].size)
        grid = (self._grid(count, dtype), 1)
        library.launch(launch.kernel, grid, (_THREADS, 1), *operands, ctypes.c_int(count))

    def _any_kernels(self) -> Kernels:
        return self._kernels[self._buffers[0].dtype]

    def _grid(self, vectors: int, dtype: paddle.dtype) -> int:
        most = _BLOCKS_PER_MULTIPROCESSOR * self._kernels[dtype].multiprocessors
        return min(most, -(-vectors // _THREADS))

    @staticmethod
    def _vectors(flat: Tensor) -> int:
        """Returns the number of vectors of flat memory. Padding follows a last vector that is not full."""
        return -(-int(flat.size) // vector_length(flat.dtype))


def _with_norms(group: _Group, weights: Sequence[Tensor]) -> _Group:
    """Returns a group with the places of its weights, and memory for their norms."""
    length = vector_length(group.weight.dtype)
    starts = []
    start = 0
    for weight in weights:
        starts.append(start // length)
        start += weight.size + -weight.size % ALIGNMENT
    sizes = [-(-weight.size // length) for weight in weights]
    return replace(
        group,
        starts=paddle.to_tensor(starts, "int32"),
        sizes=paddle.to_tensor(sizes, "int32"),
        partial=paddle.zeros([len(weights), _PARTS, 2]),
    )

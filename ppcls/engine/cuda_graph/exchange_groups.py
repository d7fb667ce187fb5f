"""Divides the gradients of a network into groups that ranks exchange during the backward pass.

The backward pass computes the gradients of the last layers first. As soon as all gradients of a group exist,
the ranks exchange it while the device computes the other gradients. The groups are those of
`paddle.DataParallel`: the group of the first layers, whose exchange cannot overlap with other work, is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor

from ppcls.engine.core.flat_buffers import FlatBuffers

_LAST_GROUP_SIZE = 1 << 20  # bytes; default of DataParallel's ``last_comm_buffer_size``


@dataclass(frozen=True)
class ExchangeSettings:
    """How ranks exchange gradients.

    Attributes:
        world: Number of ranks.
        group_size: Size of the groups of gradients in bytes; None to exchange all gradients together.
    """

    world: int = 1
    group_size: int | None = None


def divide_into_groups(weights: Sequence[Tensor], size: int | None) -> list[list[Tensor]]:
    """Returns the weights of each group, in the order in which the backward pass completes the groups.

    Args:
        weights: Weights in the order of the forward pass.
        size: Size of a group in bytes, which its last weight may exceed; None for one group.
    """
    if size is None or sum(map(_bytes_of, weights)) <= size:
        return [list(weights)]
    groups: list[list[Tensor]] = [[]]
    limit = min(size, _LAST_GROUP_SIZE)
    for weight in weights:
        if sum(map(_bytes_of, groups[-1])) >= limit:
            groups.append([])
            limit = size
        groups[-1].append(weight)
    return groups[::-1]


def _bytes_of(weight: Tensor) -> int:
    return int(weight.size * weight.element_size())


def consecutive_ranges(weights: Sequence[Tensor], places: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and last index of each range of consecutive places with the same dtype.

    Args:
        weights: All weights.
        places: Indices of some weights.
    """
    ranges: list[tuple[int, int]] = []
    for place in sorted(places):
        if ranges and place == ranges[-1][1] + 1 and weights[place].dtype == weights[place - 1].dtype:
            ranges[-1] = (ranges[-1][0], place)
        else:
            ranges.append((place, place))
    return ranges


class ExchangeGroup:
    """Gradients that ranks exchange together. They may lie in several ranges of the buffers.

    Args:
        weights: All trained weights.
        places: Indices of the weights of the group.
        total: Gradients of the update.
        addend: Memory for the gradients of a step; None if each update has one step.
    """

    def __init__(
        self, weights: Sequence[Tensor], places: Sequence[int], total: FlatBuffers, addend: FlatBuffers | None
    ) -> None:
        self._places = places
        self._total = total
        self._addend = addend
        self._ranges = consecutive_ranges(weights, places)
        self._windows = [total.window(*ends) for ends in self._ranges]

    def is_complete(self, gradients: Mapping[int, Tensor]) -> bool:
        """Returns whether the gradients of all weights exist."""
        return all(place in gradients for place in self._places)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def collect(self, gradients: Mapping[int, Tensor]) -> None:
        """Adds gradients of a step to those of the update.

        Args:
            gradients: Gradients by the index of their weight.
        """
        for (first, last), window in zip(self._ranges, self._windows, strict=True):
            added = [gradients[place] for place in range(first, last + 1)]
            if self._addend is None:
                self._total.fill(added, first)
            else:
                self._addend.fill(added, first)
                window.add_(self._addend.window(first, last))

    def start_exchange(self) -> list[Any]:
        """Starts to sum the gradients over the ranks. Returns tasks with a method ``wait``."""
        return [paddle.distributed.all_reduce(window, sync_op=False) for window in self._windows]

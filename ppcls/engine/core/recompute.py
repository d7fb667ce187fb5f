"""Recomputes the activations of blocks in the backward pass, which saves memory (gradient checkpointing).

Chen et al. 2016, https://arxiv.org/abs/1604.06174. Between the passes, only the inputs of blocks are kept.

Decisions:

- Blocks are found by structure, so every architecture can be trained this way: they are the repeated layers
  with at least two convolutions or linear layers each.
- Paddle's `recompute` restores the random generator and the precision. It does not know that BatchNorm
  updates its running statistics in each forward pass, nor `StepMasks`. Both are restored here.
- A block whose arguments contain lists, or whose input needs no gradient, is computed as usual: the first
  would lose gradients in Paddle, and the second would get none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute

from ppcls.arch.batch_statistics import batch_norms
from ppcls.arch.kernels.paddle_layers import running_statistics, uses_running_statistics
from ppcls.arch.layers.drop_path import StepMasks
from ppcls.errors import UserError

_CONTAINERS = (nn.LayerList, nn.Sequential)
_LEAST_WEIGHTS = 2  # of a block; a convolution with its normalization and activation has one


def recompute_blocks(model: nn.Layer, masks: StepMasks | None, name: str) -> int:
    """Makes the blocks of a model compute their activations again in the backward pass, in place.

    Args:
        model: The model.
        masks: Source of random factors; None if layers draw from Paddle's generator.
        name: Name of the architecture, for the error message.

    Returns:
        Number of blocks.

    Raises:
        UserError: The model has no repeated blocks.
    """
    blocks = list(find_blocks(model))
    if not blocks:
        raise UserError(
            f"Global.recompute: {name} has no repeated blocks; set it to False, and lower the batch size and "
            "raise Global.update_freq instead"
        )
    for block in blocks:
        block.forward = _RecomputedForward(block, masks)
    return len(blocks)


def find_blocks(model: nn.Layer) -> Iterator[nn.Layer]:
    """Yields the repeated layers of a model that have at least two convolutions or linear layers."""
    for layer in model.children():
        if _count_weights(layer) < _LEAST_WEIGHTS:
            continue
        if any(map(_repeats, layer.sublayers(include_self=True))):
            yield from find_blocks(layer)
        elif not isinstance(layer, nn.LayerList):
            yield layer


def _repeats(layer: nn.Layer) -> bool:
    """Returns whether a layer is a container of several blocks of one class, or of containers."""
    if not isinstance(layer, _CONTAINERS):
        return False
    kinds = Counter(type(child) for child in layer.children() if _count_weights(child) >= _LEAST_WEIGHTS)
    return max(kinds.values(), default=0) > 1


def _count_weights(layer: nn.Layer) -> int:
    """Returns the number of convolutions, linear layers and other layers with a matrix of weights."""
    return sum(
        any(len(parameter.shape) > 1 for parameter in each.parameters(include_sublayers=False))
        for each in layer.sublayers(include_self=True)
    )


class _RecomputedForward:
    """Forward method of a block that keeps only its input for the backward pass.

    Args:
        block: The block.
        masks: Source of random factors; None without one.
    """

    def __init__(self, block: nn.Layer, masks: StepMasks | None) -> None:
        self._block = block
        self._forward: Callable[..., Any] = block.forward
        self._masks = masks

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        tensors = [each for each in inputs if isinstance(each, Tensor)]
        plain = (
            not self._block.training
            or not paddle.is_grad_enabled()
            or all(each.stop_gradient for each in tensors)
            or any(isinstance(each, (list, tuple, dict)) for each in inputs)
            or any(isinstance(each, (Tensor, list, tuple, dict)) for each in options.values())
        )
        if plain:
            return self._forward(*inputs, **options)
        call = 0 if self._masks is None else self._masks.call
        first = True

        def compute(*values: Any) -> Any:
            nonlocal first
            if first:
                first = False
                return self._forward(*values, **options)
            return self._compute_again(call, values, options)

        return recompute(compute, *inputs)

    def _compute_again(self, call: int, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Repeats a forward pass, with the same random factors and without another update of BatchNorm."""
        statistics = [
            tensor
            for norm in batch_norms(self._block)
            if norm.training and not uses_running_statistics(norm)
            for tensor in running_statistics(norm)
        ]
        with paddle.no_grad():
            copies = [tensor.clone() for tensor in statistics]
        after = 0
        if self._masks is not None:
            after = self._masks.call
            self._masks.call = call
        try:
            return self._forward(*values, **options)
        finally:
            if self._masks is not None:
                self._masks.call = after
            with paddle.no_grad():
                for tensor, copy in zip(statistics, copies, strict=True):
                    tensor.copy_(copy, False)

"""Updates Muon's hidden matrices beside the kernels of `ppcls.engine.cuda_graph.fused_update`.

Paddle's operators compute this update, because most of it are products of matrices. They can be captured as
they are. A step that overflows is computed, too, and then replaced by the values before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle
from paddle import Tensor

from ppcls.optimizer.functional import MuonOptimizer
from ppcls.optimizer.paddle_optimizers import master_weights_of, parameter_rate
from ppcls.optimizer.state import accumulator


class MatrixUpdate:
    """The update of Muon's hidden matrices.

    Args:
        muon: Optimizer whose update this replaces.
        matrices: Hidden matrices, each with its flat gradient, which stays in the same memory.
    """

    def __init__(self, muon: MuonOptimizer, matrices: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._muon = muon
        masters = master_weights_of(muon)
        self._matrices = [
            (weight, masters.get(weight.name, weight), gradient, accumulator(muon, "velocity", weight))
            for weight, gradient in matrices
        ]

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def __call__(self, multiplier: Tensor, overflow: Tensor | None) -> None:
        """Updates the matrices.

        Args:
            multiplier: Factor of the gradients, [1] float32.
            overflow: Whether to change nothing, [1] bool; None to apply the update in any case.
        """
        muon = self._muon
        for weight, exact, flat, velocity in self._matrices:
            gradient = flat.astype("float32").reshape(weight.shape) * multiplier
            rate = parameter_rate(muon, (weight, gradient))
            changed = [] if overflow is None else [exact, velocity]
            before = [tensor.clone() for tensor in changed]
            muon.change(exact, gradient, rate, muon.decays[weight.name], velocity)
            # The host does not know whether the step overflows, so the device selects the values.
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(paddle.where(paddle.broadcast_to(overflow, value.shape), value, tensor), False)
            if exact is not weight:
                weight.copy_(exact.astype(weight.dtype), False)

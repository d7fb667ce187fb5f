"""The base of optimizers that Paddle has not: their update is a formula of plain operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from paddle import Tensor, optimizer


class OwnFormula(optimizer.Optimizer):  # type: ignore[misc]
    """An optimizer that computes in float32, on master weights where the model's are in half precision.

    Attributes:
        kinds: Names of the tensors that it remembers of each parameter, of that one's shape, zeros at first.

    Args:
        decay: Each parameter's weight decay, by Paddle's name for its tensor.
        common: What Paddle's optimizers take: rate, parameters, clip.
    """

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, decay: Mapping[str, float], **common: Any) -> None:
        super().__init__(**common)
        self._decay, self._multi_precision = decay, False
        self._master_weights: dict[str, Tensor] = {}

    def change(
        self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, *remembered: Tensor
    ) -> None:
        """Updates a weight and what is remembered of it, in place.

        Args:
            weight: float32.
            gradient: float32, of its shape.
            rate: [1] float32 or a scalar, the learning rate.
            decay: The weight decay.
            remembered: One for each of `kinds`, of the weight's shape.
        """
        raise NotImplementedError

    def _create_accumulators(self, _block: Any, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            exact = self._create_master_weight(parameter) if self._halved(parameter) else parameter
            for kind in self.kinds:
                self._add_accumulator(kind, exact)

    def _append_optimize_op(self, _block: Any, pair: tuple[Tensor, Tensor]) -> None:
        parameter, gradient = pair
        halved = self._halved(parameter)
        exact = self._master_weights[parameter.name] if halved else parameter
        self.change(
            exact,
            gradient.astype("float32"),
            self._create_param_lr(pair),
            self._decay[parameter.name],
            *(self._get_accumulator_master(kind, parameter) for kind in self.kinds),
        )
        if halved:
            parameter.copy_(exact.astype(parameter.dtype), False)

    def _halved(self, parameter: Tensor) -> bool:
        return bool(self._multi_precision and self._is_dtype_fp16_or_bf16(parameter.dtype))

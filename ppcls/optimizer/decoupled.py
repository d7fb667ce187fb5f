"""Paddle's AdamW and Lamb with a weight decay for each parameter, where Paddle has one for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle import Tensor, optimizer


class AdamW(optimizer.AdamW):  # type: ignore[misc]
    """AdamW.

    Args:
        decay: Each parameter's weight decay, by Paddle's name for its tensor.
        common: What Paddle's takes besides.
    """

    def __init__(self, decay: Mapping[str, float], **common: Any) -> None:
        super().__init__(weight_decay=0.0, **common)
        self._decay = decay

    def _append_optimize_op(self, block: Any, pair: tuple[Tensor, Tensor]) -> None:
        self._weight_decay = self._decay[pair[0].name]
        super()._append_optimize_op(block, pair)


class Lamb(optimizer.Lamb):  # type: ignore[misc]
    """LAMB; arguments as for `AdamW`."""

    def __init__(self, decay: Mapping[str, float], **common: Any) -> None:
        super().__init__(lamb_weight_decay=0.0, **common)
        self._decay = decay

    def _append_optimize_op(self, block: Any, pair: tuple[Tensor, Tensor]) -> None:
        self._lamb_weight_decay = self._decay[pair[0].name]
        super()._append_optimize_op(block, pair)

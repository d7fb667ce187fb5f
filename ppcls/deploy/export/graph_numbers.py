"""Constants inside an exported graph.

Plain numbers are not used with int64, because Paddle converts arithmetic with them to the operator
``scale``. Paddle Inference 3.3 on a CPU either skips this operator, or overwrites its input although other
operators need it.
"""

from __future__ import annotations

from typing import Any

import paddle


def int64(number: int) -> Any:
    """Returns a constant, [1] int64."""
    return paddle.full([1], number, "int64")

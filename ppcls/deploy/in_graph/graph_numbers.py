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


def arange(length: int) -> Any:
    """Returns the numbers from 0 to ``length - 1``, [length] int64.

    With a plain number, Paddle computes them in float64, which OpenVINO and TensorRT do not support on all
    devices.
    """
    return paddle.arange(int64(length)[0], dtype="int64")

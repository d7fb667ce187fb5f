"""Fields that several transforms have, and what their random numbers mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from ppcls.config.base.fields import Number, expected, read_number
from ppcls.config.sections.transform import ImageState

_LARGEST = {"uint8": 255, "uint16": 65535}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _limits(alone: Callable[[float], tuple[float, float]]) -> BeforeValidator:
    """Reads ``[min, max]``, or one number, which ``alone`` turns into both."""

    def read(value: Any) -> Any:
        limits = tuple(map(read_number, value if isinstance(value, (list, tuple)) else (value,)))
        if len(limits) not in (1, 2) or not all(map(_number, limits)):
            raise expected("a number >= 0, or [min, max]", value)
        low, high = limits if len(limits) == 2 else alone(limits[0])
        if low > high:
            raise expected("a number >= 0, or [min, max]", value)
        return low, high

    return BeforeValidator(read)


def _each_channel(value: Any) -> Any:
    """Reads ``0`` or ``[124, 116, 104]``."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not values:
        raise expected("a number, or one a channel", value)
    return values


AroundZero = _limits(lambda d: (-d, d))
AroundOne = _limits(lambda d: (max(0.0, 1.0 - d), 1.0 + d))
Itself = _limits(lambda n: (n, n))

Fill = Annotated[tuple[Number, ...], BeforeValidator(_each_channel)]


def check_fill(name: str, values: tuple[float, ...], state: ImageState) -> None:
    """Raises ValueError where ``values`` are not one pixel of such an image: one number, or one a channel."""
    if len(values) not in (1, state.channels):
        raise ValueError(f"expected 1 or {state.channels} values in {name}, got {len(values)}")
    largest = _LARGEST.get(state.dtype)
    if largest and not all(value == int(value) and 0 <= value <= largest for value in values):
        raise ValueError(f"expected integers from 0 to {largest} in {name}, got {list(values)}")


def chosen(prob: float, draws: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Returns for which samples an event of probability ``prob`` happens, [N] to [N]."""
    return draws < prob


def spread(limits: tuple[float, float], draws: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns numbers uniform in [min, max) from some uniform in [0, 1), [N] float32."""
    low, high = limits
    return (low + (high - low) * draws.astype(np.float64)).astype(np.float32)

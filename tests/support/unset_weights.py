"""Builds networks without random numbers, for tests that set all weights afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from paddle.nn.initializer import Constant, Initializer


@contextmanager
def unset_weights() -> Iterator[None]:
    """Initializes all weights of networks built in this block to zeros, which takes a tenth of the time."""
    zeros = Constant(0.0)

    def fill(_initializer: Initializer, parameter: Any, block: Any = None) -> Any:
        return zeros.forward(parameter, block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Initializer, "__call__", fill)
        yield

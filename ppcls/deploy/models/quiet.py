"""What Paddle's C++ and converters write on the screen, kept away from what is meant for it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def hushed() -> Iterator[None]:
    """Keeps from the screen what C++ says of its own working; a failure brings it back, on standard error."""
    with tempfile.TemporaryFile() as said, ExitStack() as screens:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (1, 2):
            screen = os.dup(number)
            screens.callback(os.close, screen)
            screens.callback(os.dup2, screen, number)
            os.dup2(said.fileno(), number)
        try:
            yield
        except BaseException:
            screens.close()
            said.seek(0)
            os.write(2, said.read())
            raise

"""Slow transforms, for tests of images that are prepared in a separate process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops.chain import apply


class Endless(Transform, abstract=True):
    """Writes the number of its process to ``file``, and does not end."""

    file: str


class Crash(Transform, abstract=True):
    """Ends its process, as a fault in a decoder does."""


@apply.register
def _endless(spec: Endless, image: Any, _: Any) -> Any:
    part = Path(spec.file + ".part")
    part.write_text(str(os.getpid()))
    part.rename(spec.file)
    while True:
        time.sleep(3600)


@apply.register
def _crash(_: Crash, image: Any, __: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)

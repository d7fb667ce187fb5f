"""Runs a tool on images of a Python object, and makes the last rank hang, stop or die on request.

The trouble is either in the thread that reads images or, with ``update:…``, in the main thread after an
update. Images are read ahead, so trouble in a reader does not tell where the main thread is. A reader that
hangs with the interpreter lock would stop the main thread anywhere.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import cv2
import numpy as np
from linear_run import ARCHITECTURES  # registers the model
from omitted_pictures import omit_curves, omit_heat_maps

from ppcls.cli.eval import evaluate
from ppcls.cli.train import train
from ppcls.data.index.python_source import register_source
from ppcls.engine.core.hooks import RunHook
from ppcls.engine.loop import Run

UPDATE = 5  # the first update of the second epoch
TROUBLE = {
    "none": lambda: None,
    "sleep": lambda: time.sleep(3600),
    "hang with the interpreter lock": lambda: ctypes.PyDLL(None).read(
        os.pipe()[0], ctypes.create_string_buffer(1), 1
    ),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def on_last_rank() -> bool:
    last = int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) - 1
    return os.environ.get("PADDLE_TRAINER_ID", "0") == str(last)


class TroubleAfterUpdate(RunHook):
    """Makes the trouble after the update `UPDATE`, on the last rank."""

    def __init__(self, trouble: str) -> None:
        self._trouble = trouble

    def on_update(self, run: Run) -> None:
        if run.state.update == UPDATE and on_last_rank():
            TROUBLE[self._trouble]()


class Noise:
    """Noise in four classes; the ``at``-th image read makes the trouble, on the last rank."""

    def __init__(self, count: int, trouble: str, at: int) -> None:
        self.labels = np.arange(count) % 4
        self._trouble, self._at, self._reads = trouble, at, 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> bytes:
        self._reads += 1
        if self._reads == self._at and on_last_rank():
            if self._trouble == "bad image":
                return b"no image"
            TROUBLE[self._trouble]()
        image = np.random.default_rng(position).integers(0, 255, (20, 20, 3), np.uint8)
        return cv2.imencode(".png", image)[1].tobytes()


if __name__ == "__main__":
    assert "Linear" in ARCHITECTURES
    omit_curves()
    omit_heat_maps()
    tool = {"train": train, "evaluate": evaluate}[sys.argv.pop(1)]
    split, trouble = sys.argv.pop(1).split(":")
    if split == "update":
        sys.argv += ["-o", f"Global.hooks=[{{troubled_run:TroubleAfterUpdate: {{trouble: {trouble}}}}}]"]
    at = 10 if tool is evaluate else 20  # in the second evaluation of a training
    register_source("train", lambda: Noise(26, trouble if split == "train" else "none", at))
    register_source("eval", lambda: Noise(26, trouble if split == "eval" else "none", at))
    sys.exit(tool())

"""Runs a tool on images of a Python object, which makes the last rank hang, stop or die on request."""

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

TROUBLE = {
    "none": lambda: None,
    "sleep": lambda: time.sleep(3600),
    "hang with the interpreter lock": lambda: ctypes.PyDLL(None).read(
        os.pipe()[0], ctypes.create_string_buffer(1), 1
    ),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class Noise:
    """Noise in four classes; the ``at``-th image read makes the trouble, on the last rank."""

    def __init__(self, count: int, trouble: str, at: int) -> None:
        self.labels = np.arange(count) % 4
        self._trouble, self._at, self._reads = trouble, at, 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> bytes:
        self._reads += 1
        last = int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) - 1
        if self._reads == self._at and os.environ.get("PADDLE_TRAINER_ID", "0") == str(last):
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
    # In the second epoch. Training reads about 28 images ahead, also beyond the end of an epoch.
    at = 10 if tool is evaluate else 42 if trouble.startswith("hang") else 20
    register_source("train", lambda: Noise(26, trouble if split == "train" else "none", at))
    register_source("eval", lambda: Noise(26, trouble if split == "eval" else "none", at))
    sys.exit(tool())

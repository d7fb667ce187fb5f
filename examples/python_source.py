"""Trains on images from a Python object, which draws circles and squares when the loader requests them.

    python examples/python_source.py
    python examples/python_source.py -o Global.use_dali=False Global.output_dir=output/without_dali

The object has an array of labels, and returns the bytes of an encoded image for each position. Your object
can read these bytes from a database, an archive or a service. `register_source` registers the object under a
name. In the config, the key `source` of `PythonDataset` refers to this name.
"""

import sys
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli import train as cli
from ppcls.data.index.python_source import register_source

SIDE = 48  # pixels


class Shapes:
    """A data set of circles (label 0) and squares (label 1) with random size, position and colour."""

    def __init__(self, count: int, seed: int) -> None:
        self.labels = np.arange(count) % 2
        self.seed = seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> bytes:
        random = np.random.default_rng([self.seed, position])  # draws the same image each time
        image = np.full((SIDE, SIDE, 3), random.integers(0, 100, 3), np.uint8)
        radius = int(random.integers(8, 16))
        x, y = random.integers(radius, SIDE - radius, 2).tolist()
        colour = random.integers(150, 256, 3).tolist()
        if self.labels[position] == 0:
            cv2.circle(image, (x, y), radius, colour, -1)
        else:
            cv2.rectangle(image, (x - radius, y - radius), (x + radius, y + radius), colour, -1)
        return cv2.imencode(".png", image)[1].tobytes()


register_source("training shapes", lambda: Shapes(512, seed=1))
register_source("evaluation shapes", lambda: Shapes(128, seed=2))

if __name__ == "__main__":
    config = Path(__file__).with_suffix(".yaml")
    sys.exit(cli.train(["-c", str(config), *sys.argv[1:]]))

"""``ppcls benchmark``: measures the data loaders and the training steps of ppcls on this machine.

Comparisons with other software, and measurements that only developers of ppcls need, are in the folder
``benchmarks/`` of the repository.
"""

from __future__ import annotations

from ppcls.cli.benchmark.loader import measure_loader
from ppcls.cli.benchmark.train import measure_train
from ppcls.cli.command import CommandGroup

_MOVED = "`benchmark {0}` is now `python benchmarks/run.py {0}` in a clone of ppcls, with the same options"

main = CommandGroup(
    "benchmark",
    "Measure the speed of data loading and training on this machine.",
    (
        "ppcls benchmark loader -c configs/ResNet50_photos.yaml --quick",
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --out tour",
    ),
    (measure_loader, measure_train),
    moved={name: _MOVED.format(name) for name in ("containers", "run", "infer", "serve", "compare")},
)

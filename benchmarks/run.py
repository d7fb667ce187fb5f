"""Runs a benchmark of the repository: ``python benchmarks/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Replace this folder in the path, because its modules would hide others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.accuracy.command import measure_accuracy
from benchmarks.accuracy.predictions import draw_predictions
from benchmarks.audit.command import measure_audit
from benchmarks.containers.command import measure_containers
from benchmarks.infer.command import measure_infer
from benchmarks.infer.kernels import list_kernels
from benchmarks.limits.command import measure_limits
from benchmarks.pytorch.command import measure_pytorch
from benchmarks.pytorch.families import measure_families
from benchmarks.results.command import compare, draw_charts
from benchmarks.scale.command import measure_scale
from benchmarks.serve.command import measure_serve
from benchmarks.whole_run.command import measure_run
from ppcls.cli.command import CommandGroup

main = CommandGroup(
    "benchmarks/run.py",
    "Measure ppcls beside other software, and whole runs, on this machine. `ppcls benchmark` measures the "
    "data loaders and the training steps of ppcls.",
    (
        "python benchmarks/run.py pytorch -c configs/ResNet50_photos.yaml --torch-compile",
        "python benchmarks/run.py infer --model runs/pets/best_model",
        "python benchmarks/run.py compare before after",
    ),
    (
        measure_pytorch,
        measure_families,
        measure_run,
        measure_limits,
        measure_accuracy,
        draw_predictions,
        measure_audit,
        measure_infer,
        list_kernels,
        measure_serve,
        measure_containers,
        measure_scale,
        compare,
        draw_charts,
    ),
)

if __name__ == "__main__":
    sys.exit(main())

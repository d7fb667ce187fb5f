"""PyTorch's counterpart of our training: its variants, and the processes that measure them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ppcls.bench.measure.processes import MeasuringProcess
from ppcls.bench.measure.runner import Candidate, MeasurementFailed, Sample
from ppcls.bench.train.tasks import Inspection, TrainTask, settle_seconds
from ppcls.bench.train.variants import PRECISIONS, TrainingDevice, Variant, find_obstacle
from ppcls.config.schema import Config
from ppcls.config.sections.transform import check_chain
from ppcls.errors import UserError

EAGER, COMPILED = "PyTorch", "PyTorch, compiled"
_WORKER = Path(__file__).with_name("pytorch_worker.py")
_IMPORT_SECONDS = 300.0  # timeout of importing PyTorch


@dataclass(frozen=True)
class PyTorchPython:
    """A Python with PyTorch.

    Attributes:
        python: Path of the executable.
        version: Versions of PyTorch and torchvision.
        compiled: Whether to measure compiled models too.
    """

    python: str
    version: str
    compiled: bool

    def variants(self, variants: Sequence[Variant]) -> Iterator[Variant]:
        """Yields PyTorch's counterparts of our variants on synthetic data.

        PyTorch has no O2: autocast, which is our O1, is its half precision training.
        """
        synthetic = [
            replace(variant, precision=variant.precision.replace("O2", "O1"))
            for variant in variants
            if variant.source == "synthetic"
        ]
        for variant in dict.fromkeys(synthetic):
            yield replace(variant, framework=EAGER)
            if self.compiled:
                yield replace(variant, framework=COMPILED)

    def candidates(
        self,
        variants: Sequence[Variant],
        task: TrainTask,
        config: Config,
        inspection: Inspection,
        timeout: float,
    ) -> list[Candidate[Variant]]:
        """Returns candidates that measure variants of PyTorch.

        Args:
            variants: Variants of PyTorch.
            task: How long to measure.
            config: Config whose training is compared.
            inspection: Facts about machine and model.
            timeout: Seconds after which a measurement is aborted.
        """
        split, device = config.DataLoader.need_train(), inspection.device
        base = {
            "model": config.Arch.exported.name,
            "classes": config.Arch.class_num,
            "parameters": inspection.rgb_parameters,
            "size": check_chain(split.dataset.transform_ops).size,
            "device": device.kind,
            "warm_up": task.warm_up,
            "settle": settle_seconds(device.kind),
            "steps": task.steps,
            "seconds": task.seconds,
        }
        candidates = []
        for variant in variants:
            cores = max(1, device.cores // variant.processes)
            torch_task = base | {
                "batch_size": variant.batch_size or split.sampler.rows(variant.processes),
                "processes": variant.processes,
                "threads": min(inspection.threads, cores),
                "format": PRECISIONS[variant.precision].format,
                "layout": variant.layout,
                "cudnn_search": variant.cudnn_search in ("on", "auto"),
                "accumulate": variant.accumulate,
                "compile": variant.framework == COMPILED,
            }
            measure = partial(self._measure, variant, torch_task, device, timeout)
            candidates.append(Candidate(variant, variant.describe(), measure))
        return candidates

    def _measure(
        self, variant: Variant, task: dict[str, Any], device: TrainingDevice, timeout: float
    ) -> Sample:
        if obstacle := find_obstacle(variant, device):
            raise MeasurementFailed(obstacle)
        count = str(variant.processes)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", count]
        command = [self.python, *(launcher if variant.processes > 1 else []), str(_WORKER)]
        return MeasuringProcess(command, task, timeout, variant.environment()).run()


def find_pytorch(python: str, *, compiled: bool) -> PyTorchPython:
    """Checks that a Python has PyTorch and torchvision.

    Args:
        python: Path of the executable.
        compiled: Whether to measure compiled models too.

    Raises:
        UserError: It cannot be started, or cannot import both.
    """
    code = "import torch, torchvision; print(torch.__version__, torchvision.__version__)"
    try:
        done = subprocess.run(  # noqa: S603 - named by the user
            [python, "-c", code], capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False
        )
    except OSError as error:
        raise UserError(f"--torch {python}: cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"--torch {python}: did not import torch within {_IMPORT_SECONDS:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(
            f"--torch {python}: cannot import torch and torchvision: {last}; name a Python that has both"
        )
    return PyTorchPython(python, " and torchvision ".join(done.stdout.split()), compiled)

"""Which ways of PyTorch's training stand beside ours, and the processes that measure them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ppcls.bench.measure.children import Outcome, measure_apart
from ppcls.bench.train.train import Length, Look, Run, settling
from ppcls.bench.train.variants import PRECISIONS, Variant, hindrance
from ppcls.config.schema import Config
from ppcls.config.sections.transform import check_chain
from ppcls.errors import UserError

EAGER, COMPILED = "PyTorch", "PyTorch, compiled"
_WORKER = Path(__file__).with_name("pytorch_worker.py")
_PATIENCE = 300.0  # seconds to import PyTorch in


@dataclass(frozen=True)
class Counterpart:
    """A Python that has PyTorch.

    Attributes:
        python: Its executable.
        version: Of PyTorch and torchvision.
        compiled: Whether to measure compiled models, too.
    """

    python: str
    version: str
    compiled: bool

    def variants(self, ours: Sequence[Variant]) -> Iterator[Variant]:
        """Yields PyTorch's ways: those of ours on synthetic data.

        PyTorch has no O2: autocast, our O1, is what it trains with in half precision.
        """
        for each in dict.fromkeys(_by_autocast(each) for each in ours if each.source == "synthetic"):
            yield replace(each, framework=EAGER)
            if self.compiled:
                yield replace(each, framework=COMPILED)

    def runner(self, config: Config, look: Look, length: Length) -> Run:
        """Returns what measures one of these ways once."""
        split = config.DataLoader.Train
        assert split is not None  # by look_at
        size = check_chain(split.dataset.transform_ops).size

        def run(variant: Variant) -> Outcome:
            if reason := hindrance(variant, look.place):
                return Outcome(None, reason)
            task = {
                "model": config.Arch.exported.name,
                "classes": config.Arch.class_num,
                "parameters": look.rgb_parameters,
                "size": size,
                "batch_size": variant.batch_size or split.sampler.rows(variant.processes),
                "processes": variant.processes,
                "device": look.place.device,
                "threads": min(look.threads, max(1, look.place.cores // variant.processes)),
                "format": PRECISIONS[variant.precision].format,
                "layout": variant.layout,
                "cudnn_search": variant.cudnn_search in ("on", "auto"),
                "accumulate": variant.accumulate,
                "compile": variant.framework == COMPILED,
                "warm_up": length.warm_up,
                "settle": settling(look.place.device),
                "steps": length.steps,
                "seconds": length.seconds,
            }
            return measure_apart(
                [self.python, *_launcher(variant.processes), str(_WORKER)],
                task,
                variant.environment(),
                length.timeout,
            )

        return run


def find_counterpart(python: str, *, compiled: bool) -> Counterpart:
    """Looks whether a Python has PyTorch.

    Args:
        python: Its executable.
        compiled: Whether to measure compiled models, too.

    Raises:
        UserError: It has not, or is none.
    """
    said = "import torch, torchvision; print(torch.__version__, torchvision.__version__)"
    try:
        done = subprocess.run(  # noqa: S603 - what the user named
            [python, "-c", said], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except OSError as error:
        raise UserError(f"--torch {python}: can't be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"--torch {python}: has not imported torch after {_PATIENCE:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(
            f"--torch {python}: can't import torch and torchvision: {last}; name a Python that has both"
        )
    return Counterpart(python, " and torchvision ".join(done.stdout.split()), compiled)


def _by_autocast(variant: Variant) -> Variant:
    return replace(variant, precision=variant.precision.replace("O2", "O1"))


def _launcher(processes: int) -> list[str]:
    if processes == 1:
        return []
    return ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]

"""Ways to train a config: its own, and variants of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from ppcls.bench.measure.runner import powers_of_two
from ppcls.bench.results.schema import Label
from ppcls.bench.train.peak_flops import Format
from ppcls.config.schema import Config

Source = Literal["synthetic", "loader", "bare"]
# An idle GPU is fast for one second, then slows down; its clock is stable after about 2 s:
# docs/performance.md.
_SETTLE_SECONDS = 2.0


class _Precision(NamedTuple):
    """AMP level in the config, and format in which products are computed."""

    level: str | None
    format: Format


PRECISIONS = {
    "float32": _Precision(None, "float32"),
    "TF32": _Precision(None, "TF32"),
    "O1": _Precision("O1", "float16"),
    "O2": _Precision("O2", "float16"),
    "O1-bfloat16": _Precision("O1", "bfloat16"),
    "O2-bfloat16": _Precision("O2", "bfloat16"),
}


@dataclass(frozen=True)
class Inspection:
    """Facts about machine and model, found before anything is measured.

    Attributes:
        device: ``cpu`` or ``gpu``.
        cores: CPU cores of a single process.
        threads: Paddle's threads in a single process.
        gpus: Number of usable GPUs; 0 on a CPU.
        card: Name of the GPU; empty on a CPU.
        capability: Compute capability of the GPU; (0, 0) on a CPU.
        machine: Machine, for the results.
        versions: Package versions, for the results.
        model: Name of the model.
        size: Height and width of its images, such as ``224x224``.
        rgb_parameters: Number of parameters of the model for images with three channels.
        multiply_adds: Multiply-adds of the forward pass on one image; None if several models train together.
    """

    device: Literal["cpu", "gpu"]
    cores: int
    threads: int
    gpus: int = 0
    card: str = ""
    capability: tuple[int, int] = (0, 0)
    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    model: str = ""
    size: str = ""
    rgb_parameters: int = 0
    multiply_adds: int | None = None

    @property
    def has_tf32(self) -> bool:
        """Whether the card has TF32 and bfloat16, which exist since Ampere."""
        return self.capability >= (8, 0)

    @property
    def settle_seconds(self) -> float:
        """Seconds of work after which the device's clock is stable."""
        return _SETTLE_SECONDS if self.device == "gpu" else 0.0

    def describe(self) -> str:
        """Returns a readable description in one line."""
        return f"CPU, {self.cores} cores" if self.device == "cpu" else f"{self.gpus} x {self.card}"


@dataclass(frozen=True)
class Variant:
    """One way to train. Its fields are labels of the result row.

    Attributes:
        processes: Number of GPUs, or of processes that share a CPU.
        precision: One of `PRECISIONS`.
        layout: ``NCHW`` or ``NHWC``.
        batch_size: Images per batch and process; 0 if processes share a global batch size.
        source: ``synthetic``: one random batch on the device; ``loader``: the config's data; ``bare``: the
            loop of Paddle's documentation on synthetic data.
        framework: ``Paddle`` or a kind of PyTorch.
    """

    processes: int
    precision: str
    layout: str
    batch_size: int
    source: str
    framework: str = "Paddle"

    def labels(self) -> dict[str, Label]:
        """Returns the fields by name."""
        return {name.replace("_", " "): value for name, value in asdict(self).items()}

    def describe(self) -> str:
        """Returns a readable description in one line."""
        framework = f"{self.framework}, " if self.framework != "Paddle" else ""
        plural = "es" if self.processes > 1 else ""
        batch = f"batch {self.batch_size}, " if self.batch_size else ""
        return (
            f"{framework}{self.processes} process{plural}, {self.precision}, {self.layout}, {batch}"
            f"{self.source}"
        )

    def overrides(self, base: Variant) -> list[str]:
        """Returns the overrides of a config that by itself trains as ``base``."""
        level, format = PRECISIONS[self.precision]
        changes = [f"Arch.data_format={self.layout}"]
        if self.precision != base.precision:
            amp = [f"AMP.level={level}", f"AMP.dtype={format}"] if level is not None else []
            changes += [f"AMP.use_amp={level is not None}", *amp]
        if self.batch_size != base.batch_size:
            changes.append(f"DataLoader.Train.sampler.batch_size={self.batch_size}")
        return changes

    def environment(self) -> dict[str, str | None]:
        """Returns the variables to set before Paddle or PyTorch is imported; None removes one.

        0 forbids TF32 in NVIDIA's libraries. Without it, Paddle and our PyTorch worker use TF32 if they can.
        """
        if self.precision not in ("float32", "TF32"):
            return {}
        return {"NVIDIA_TF32_OVERRIDE": "0" if self.precision == "float32" else None}


def config_variant(config: Config, machine: Inspection, source: Source) -> Variant:
    """Returns how a config trains by itself in one process.

    Raises:
        UserError: The config has no ``DataLoader.Train``.
    """
    name, size = config.DataLoader.need_train().sampler.batch_setting
    amp = config.AMP
    precision = "TF32" if machine.has_tf32 else "float32"
    if amp is not None and amp.use_amp:
        precision = amp.level if amp.dtype == "float16" else f"{amp.level}-bfloat16"
    batch_size = 0 if name == "global_batch_size" else size
    return Variant(1, precision, config.Arch.data_format, batch_size, source)


def find_variants(
    config: Config, machine: Inspection, sources: list[Source], axes: dict[str, list[Any]]
) -> list[Variant]:
    """Returns all combinations of the axes' values; without any value, a tour.

    The tour starts at the config's own variant and changes one thing at a time. Each variant is measured with
    every source.

    Args:
        config: Config to train.
        machine: Device to train on.
        sources: Sources of the batches.
        axes: Name of a field of `Variant` to its values; an empty list leaves it as the config has it.

    Raises:
        UserError: The config has no ``DataLoader.Train``.
    """
    base = config_variant(config, machine, sources[0])
    used = {name: values for name, values in axes.items() if values}
    if used:
        combinations = product(*used.values())
        variants = [replace(base, **dict(zip(used, values, strict=True))) for values in combinations]
    else:
        variants = [base, *_tour(base, machine)]
    return list(dict.fromkeys(replace(variant, source=source) for variant in variants for source in sources))


def _tour(base: Variant, machine: Inspection) -> Iterator[Variant]:
    yield from (replace(base, precision=precision) for precision in PRECISIONS)
    yield from (replace(base, layout=layout) for layout in ("NCHW", "NHWC"))
    yield from (replace(base, processes=processes) for processes in powers_of_two(machine.gpus))


def find_obstacle(variant: Variant, machine: Inspection) -> str | None:
    """Returns why a variant cannot run here, as far as is known without trying; None if nothing is known."""
    format = PRECISIONS[variant.precision].format
    if machine.device == "cpu":
        return f"{format} needs a GPU" if format in ("TF32", "float16") else None
    if format in ("TF32", "bfloat16") and not machine.has_tf32:
        major, minor = machine.capability
        return f"{format} needs compute capability 8.0 (Ampere), but {machine.card} has {major}.{minor}"
    if variant.processes > machine.gpus:
        return f"{variant.processes} processes need as many GPUs, but Paddle sees {machine.gpus}"
    return None

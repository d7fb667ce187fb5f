"""Variants of a config's training that the benchmark compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ppcls.bench.measure.runner import powers_of_two
from ppcls.bench.results.schema import Label
from ppcls.bench.train.peak_flops import Format
from ppcls.errors import counted

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.build import ModelInput
    from ppcls.data.sampling.base import Sampler
    from ppcls.engine.core.settings import AMP

# An idle GPU is fast for one second, then slows down. Its clock is stable after about 2 s; see
# docs/performance.md.
_SETTLE_SECONDS = 2.0
AS_PPCLS = "auto"  # the search of cuDNN as ppcls sets it in training


class _Precision(NamedTuple):
    """AMP level in the config, and number format in which products are computed."""

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
    """Facts about machine and model, which are determined before anything is measured.

    Attributes:
        device: ``cpu`` or ``gpu``.
        cores: Number of CPU cores for a single process.
        threads: Number of Paddle's threads in a single process.
        gpus: Number of usable GPUs; 0 on a CPU.
        card: Name of the GPU; empty on a CPU.
        capability: Compute capability of the GPU; (0, 0) on a CPU.
        machine: Facts about the machine, for the results.
        versions: Versions of packages, for the results.
        model: Name of the model.
        size: Height and width of the input images, such as ``224x224``.
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
        """Whether the GPU supports TF32 and bfloat16: Ampere and newer GPUs do."""
        return self.capability >= (8, 0)

    @property
    def settle_seconds(self) -> float:
        """Seconds of work after which the device's clock is stable."""
        return _SETTLE_SECONDS if self.device == "gpu" else 0.0

    def describe(self) -> str:
        """Returns a description of the device, such as ``CPU, 8 cores``."""
        return f"CPU, {counted(self.cores, 'core')}" if self.device == "cpu" else f"{self.gpus} x {self.card}"


@dataclass(frozen=True)
class Variant:
    """Variant of training. Its fields are the labels of the result row.

    Attributes:
        processes: Number of GPUs, or of processes on a CPU.
        precision: Key of `PRECISIONS`.
        layout: ``NCHW`` or ``NHWC``.
        batch_size: Images per batch and process; 0 if the config sets a global batch size.
        source: ``synthetic`` for one random batch on the device; ``loader`` for the config's data; ``bare``
            for the loop of Paddle's documentation on one random batch.
        framework: ``Paddle``, ``PyTorch`` or ``PyTorch, compiled``.
        cudnn_search: Whether cuDNN searches for the fastest kernels: ``on``, ``off``, or ``auto`` as ppcls
            does in training.
    """

    processes: int
    precision: str
    layout: str
    batch_size: int
    source: str
    framework: str = "Paddle"
    cudnn_search: str = AS_PPCLS

    def labels(self) -> dict[str, Label]:
        """Returns the labels of the result row: the fields by name, without a search that ppcls chooses."""
        fields = asdict(self)
        if self.cudnn_search == AS_PPCLS:
            del fields["cudnn_search"]
        return {name.replace("_", " "): value for name, value in fields.items()}

    def describe(self) -> str:
        """Returns a description of the variant in one line."""
        framework = f"{self.framework}, " if self.framework != "Paddle" else ""
        batch = f"batch {self.batch_size}, " if self.batch_size else ""
        search = "" if self.cudnn_search == AS_PPCLS else f"cuDNN search {self.cudnn_search}, "
        return (
            f"{framework}{counted(self.processes, 'process')}, {self.precision}, {self.layout}, {batch}"
            f"{search}{self.source}"
        )

    def overrides(self, base: Variant) -> list[str]:
        """Returns the overrides that change a config with the variant ``base`` to this variant."""
        level, format = PRECISIONS[self.precision]
        changes = [f"Arch.data_format={self.layout}"]
        if self.precision != base.precision:
            amp = [f"AMP.level={level}", f"AMP.dtype={format}"] if level is not None else []
            changes += [f"AMP.use_amp={level is not None}", *amp]
        if self.batch_size != base.batch_size:
            changes.append(f"DataLoader.Train.sampler.batch_size={self.batch_size}")
        return changes

    def environment(self) -> dict[str, str | None]:
        """Returns environment variables to set before Paddle or PyTorch is imported; None removes a variable.

        The value 0 disables TF32 in NVIDIA's libraries. Without the variable, Paddle and ppcls's PyTorch
        worker use TF32 if the GPU supports it.
        """
        variables: dict[str, str | None] = {}
        if self.cudnn_search != AS_PPCLS:
            variables["FLAGS_cudnn_exhaustive_search"] = "1" if self.cudnn_search == "on" else "0"
        if self.precision in ("float32", "TF32"):
            variables["NVIDIA_TF32_OVERRIDE"] = "0" if self.precision == "float32" else None
        return variables


def config_variant(
    sampler: Sampler, arch: ModelInput, amp: AMP | None, machine: Inspection, source: str = "synthetic"
) -> Variant:
    """Returns the variant that a config trains in one process without overrides.

    Args:
        sampler: ``DataLoader.Train.sampler``, which defines the batch size.
        arch: Layout of the images.
        amp: Settings of mixed precision; None without mixed precision.
        machine: Machine to train on.
        source: Source of the batches.
    """
    name, size = sampler.batch_setting
    precision = "TF32" if machine.has_tf32 else "float32"
    if amp is not None and amp.use_amp:
        precision = amp.level if amp.dtype == "float16" else f"{amp.level}-bfloat16"
    batch_size = 0 if name == "global_batch_size" else size
    return Variant(1, precision, arch.data_format, batch_size, source)


def find_variants(
    base: Variant, machine: Inspection, sources: Sequence[str], axes: Mapping[str, Sequence[Any]]
) -> list[Variant]:
    """Returns all combinations of the axes' values, each with every source.

    Without any values, the variants are the config's own variant and variants in which one field is changed.

    Args:
        base: The config's own variant, see `config_variant`.
        machine: Machine to train on.
        sources: Sources of the batches.
        axes: Values by name of a field of `Variant`; an empty sequence keeps the config's value.
    """
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
    """Returns the reason why a variant cannot run on a machine; None if no reason is known in advance."""
    format = PRECISIONS[variant.precision].format
    if machine.device == "cpu":
        if variant.cudnn_search == "on":
            return "the search of cuDNN needs a GPU"
        return f"{format} needs a GPU" if format in ("TF32", "float16") else None
    if format in ("TF32", "bfloat16") and not machine.has_tf32:
        major, minor = machine.capability
        return f"{format} needs compute capability 8.0 (Ampere), but {machine.card} has {major}.{minor}"
    if variant.processes > machine.gpus:
        return (
            f"{counted(variant.processes, 'process needs', 'processes need')} "
            f"{counted(variant.processes, 'GPU')}, but Paddle finds {machine.gpus}"
        )
    return None

"""The ways of training that a benchmark goes through: a config's own, and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from ppcls.bench.results.results import Label
from ppcls.bench.train.peak_flops import Format
from ppcls.config.schema import Config
from ppcls.errors import UserError

Source = Literal["synthetic", "loader", "bare"]


class _Precision(NamedTuple):
    """How the config says a precision, and in which format its products are computed."""

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
class Place:
    """What there is to train on.

    Attributes:
        device: ``cpu`` or ``gpu``.
        cores: Of one process alone.
        gpus: GPUs that can be used; 0 on a CPU.
        card: The GPU's name; empty on a CPU.
        capability: The GPU's compute capability; (0, 0) on a CPU.
    """

    device: Literal["cpu", "gpu"]
    cores: int
    gpus: int = 0
    card: str = ""
    capability: tuple[int, int] = (0, 0)

    @property
    def tf32(self) -> bool:
        """Whether the card has TF32 and bfloat16, which came with Ampere."""
        return self.capability >= (8, 0)


@dataclass(frozen=True)
class Variant:
    """One way of training. Its fields are a result's labels.

    Attributes:
        processes: As many GPUs, or gloo processes that share a CPU.
        precision: One of `PRECISIONS`.
        layout: ``NCHW`` or ``NHWC``.
        cudnn_search: ``on``, ``off``, ``auto`` as training itself chooses, or ``none`` on a CPU.
        accumulate: Batches an update.
        batch_size: Images a batch and process; 0 where processes share a global one.
        source: ``synthetic``: one random batch on the device; ``loader``: the config's own data; ``bare``:
            the loop of Paddle's documentation on synthetic data.
        framework: ``Paddle`` or a kind of PyTorch.
    """

    processes: int
    precision: str
    layout: str
    cudnn_search: str
    accumulate: int
    batch_size: int
    source: str
    framework: str = "Paddle"

    def labels(self) -> dict[str, Label]:
        """Returns the fields by name."""
        return {each.name.replace("_", " "): getattr(self, each.name) for each in fields(self)}

    def describe(self) -> str:
        """Returns a line for people."""
        several = "es" if self.processes > 1 else ""
        parts = [
            *([self.framework] if self.framework != "Paddle" else []),
            f"{self.processes} process{several}, {self.precision}, {self.layout}",
            *([f"cuDNN search {self.cudnn_search}"] if self.cudnn_search in ("on", "off") else []),
            *([f"{self.accumulate} batches an update"] if self.accumulate > 1 else []),
            *([f"batch {self.batch_size}"] if self.batch_size else []),
        ]
        return f"{', '.join(parts)}, {self.source}"

    def overrides(self, own: Variant) -> list[str]:
        """Returns what to change in a config whose own way is ``own``."""
        level, format = PRECISIONS[self.precision]
        changes = [f"Arch.data_format={self.layout}", f"Global.update_freq={self.accumulate}"]
        if self.precision != own.precision:
            amp = [f"AMP.level={level}", f"AMP.dtype={format}"] if level is not None else []
            changes += [f"AMP.use_amp={level is not None}", *amp]
        if self.batch_size != own.batch_size:
            changes.append(f"DataLoader.Train.sampler.batch_size={self.batch_size}")
        return changes

    def environment(self) -> dict[str, str | None]:
        """Returns the variables to set, None for those to remove, before Paddle or PyTorch is imported."""
        found: dict[str, str | None] = {}
        if self.cudnn_search in ("on", "off"):
            found["FLAGS_cudnn_exhaustive_search"] = str(int(self.cudnn_search == "on"))
        if self.precision in ("float32", "TF32"):
            # NVIDIA's libraries: 0 forbids TF32; Paddle, and ours of PyTorch, take it where they may.
            found["NVIDIA_TF32_OVERRIDE"] = "0" if self.precision == "float32" else None
        return found


def own_variant(config: Config, place: Place, source: Source) -> Variant:
    """Returns how a config trains by itself, as one process.

    Raises:
        UserError: It does not train.
    """
    if config.DataLoader.Train is None:
        raise UserError("training needs DataLoader.Train in the config")
    amp = config.AMP
    precision = "TF32" if place.tf32 else "float32"
    if amp is not None and amp.use_amp:
        precision = amp.level if amp.dtype == "float16" else f"{amp.level}-bfloat16"
    name, size = config.DataLoader.Train.sampler.batch_setting
    search = "off" if config.Global.deterministic else "auto"
    return Variant(
        processes=1,
        precision=precision,
        layout=config.Arch.data_format,
        cudnn_search="none" if place.device == "cpu" else search,
        accumulate=config.Global.update_freq,
        batch_size=0 if name == "global_batch_size" else size,
        source=source,
    )


@dataclass(frozen=True)
class Axes:
    """What to go through; an axis of no values is not named.

    Attributes:
        sources: Of the batches.
        processes: See `Variant`, also for those that follow.
        precision: One of `PRECISIONS`.
        layout: ``NCHW``, ``NHWC``.
        cudnn_search: ``on``, ``off``.
        accumulate: Batches an update.
        batch_size: Images a batch and process.
    """

    sources: tuple[Source, ...] = ("synthetic", "loader")
    processes: tuple[int, ...] = ()
    precision: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    cudnn_search: tuple[str, ...] = ()
    accumulate: tuple[int, ...] = ()
    batch_size: tuple[int, ...] = ()

    def named(self) -> dict[str, Sequence[Any]]:
        """Returns the axes that have values, the sources apart."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "sources"}
        return {name: each for name, each in values.items() if each}


def find_variants(config: Config, place: Place, axes: Axes) -> list[Variant]:
    """Returns all combinations of the axes' values, or where none is named, a tour.

    The tour begins with the config's own way and changes one thing at a time. Each way is measured from every
    source.

    Raises:
        UserError: The config does not train.
    """
    own = own_variant(config, place, axes.sources[0])
    named = axes.named()
    if named:
        ways = [replace(own, **dict(zip(named, each, strict=True))) for each in product(*named.values())]
    else:
        ways = [own, *_tour(own, place)]
    return list(dict.fromkeys(replace(way, source=source) for way in ways for source in axes.sources))


def _tour(own: Variant, place: Place) -> Iterator[Variant]:
    for precision in PRECISIONS:
        yield replace(own, precision=precision)
    for layout in ("NCHW", "NHWC"):
        yield replace(own, layout=layout)
    if place.device == "gpu":
        for search in ("on", "off"):
            yield replace(own, cudnn_search=search)
    yield replace(own, accumulate=4 if own.accumulate == 1 else 1)
    for processes in counts(place.gpus):
        yield replace(own, processes=processes)


def counts(most: int) -> list[int]:
    """Returns 1, 2, 4 and so on, and ``most``."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({*powers, most}) if most else []


def hindrance(variant: Variant, place: Place) -> str | None:
    """Returns why a variant can't run here, as far as is known without trying; None if nothing is."""
    format = PRECISIONS[variant.precision].format
    if place.device == "cpu":
        if format in ("TF32", "float16"):
            return f"{format} needs a GPU"
        return None if variant.cudnn_search == "none" else "cuDNN is for GPUs"
    if format in ("TF32", "bfloat16") and not place.tf32:
        major, minor = place.capability
        return f"{format} needs compute capability 8.0 (Ampere), and {place.card} has {major}.{minor}"
    if variant.processes > place.gpus:
        return f"{variant.processes} processes need as many GPUs, and Paddle sees {place.gpus}"
    return None

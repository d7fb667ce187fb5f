"""Settings of data loaders that a sweep tries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ppcls.bench.loader.workload import Chain
from ppcls.bench.results.schema import Label
from ppcls.data.loaders.dali.settings import default_prefetch

Backend = Literal["read only", "bare DALI", "paddle.io", "DALI CPU", "DALI GPU"]
BACKENDS: tuple[Backend, ...] = ("read only", "bare DALI", "paddle.io", "DALI CPU", "DALI GPU")
Stage = Literal["disk", "decode", "transform", "hand-over"]
STAGES: tuple[Stage, ...] = ("disk", "decode", "transform", "hand-over")
BEST, PRESENT = "best found", "present"  # settings that a sweep measures once more at its end
AS_CONFIGURED = "as configured"
_MOST_SKIPPED = 9


@dataclass(frozen=True)
class LoaderSetting:
    """One way to load images.

    Attributes:
        backend: Implementation.
        chain: Work per image.
        workers: Threads of DALI or of reading only; processes of paddle.io, 0 to work in this process.
        prefetch: Batches that DALI prepares ahead; None for the config's value.
        decoder: Name of the decoder's settings.
        dali: These settings, as keys of DataLoader.Train.loader.dali.
        varied: Axis of the sweep that this setting belongs to.
        mixup: Whether batches are mixed.
    """

    backend: Backend
    chain: Chain
    workers: int
    prefetch: int | None = None
    decoder: str = AS_CONFIGURED
    dali: dict[str, Any] = field(default_factory=dict, hash=False)
    varied: str = "workers"
    mixup: bool = False

    @property
    def by_dali(self) -> bool:
        """Whether this is our DALI loader."""
        return self.backend in ("DALI CPU", "DALI GPU")

    def labels(self) -> dict[str, Label]:
        """Returns the labels of the result row."""
        labels: dict[str, Label] = {
            "varied": self.varied,
            "chain": self.chain,
            "backend": self.backend,
            "workers": self.workers,
        }
        if self.prefetch is not None:
            labels["prefetch"] = self.prefetch
        return labels | ({"decoder": self.decoder} if self.varied == "decoder" else {})

    def describe(self) -> str:
        """Returns a short description of backend and settings."""
        unit = "worker" if self.backend == "paddle.io" else "thread"
        words = [self.backend, f"{self.workers} {unit}{'s' if self.workers != 1 else ''}"]
        words += [f"prefetch {self.prefetch}"] if self.prefetch is not None else []
        words += [f"decoder {self.decoder}"] if self.decoder != AS_CONFIGURED else []
        return ", ".join(words)

    @property
    def skipped_batches(self) -> int:
        """Batches before the clock starts: as many as may have been prepared ahead, and one."""
        if self.backend == "paddle.io":
            ahead = 2 * self.workers
        else:
            ahead = self.prefetch or default_prefetch(self.workers, on_gpu=self.backend == "DALI GPU")
        return min(ahead + 1, _MOST_SKIPPED)


@dataclass(frozen=True)
class SweepRange:
    """Values that a sweep tries.

    Attributes:
        backends: Backends.
        chains: Chains.
        varied: Axes.
        threads: Thread counts of DALI and of reading only.
        workers: Worker counts of paddle.io.
        prefetch: Prefetch depths of DALI.
    """

    backends: tuple[Backend, ...]
    chains: tuple[Chain, ...]
    varied: tuple[str, ...]
    threads: tuple[int, ...]
    workers: tuple[int, ...]
    prefetch: tuple[int, ...] = (1, 2, 4, 8)


def list_settings(
    sweep_range: SweepRange, *, on_gpu: bool, random_crop: bool, bare: Collection[Chain]
) -> list[LoaderSetting]:
    """Returns all settings of a sweep.

    Args:
        sweep_range: Values to try.
        on_gpu: Whether there is a GPU.
        random_crop: Whether the config's chain starts with a random crop, whose window alone can be decoded.
        bare: Chains that have a bare pipeline.
    """
    settings = []
    for chain in sweep_range.chains if "workers" in sweep_range.varied else ():
        for backend in sweep_range.backends:
            counts: tuple[int, ...] = sweep_range.threads
            match backend:
                case "read only":
                    counts = counts if chain == "read" else ()
                case "bare DALI":
                    counts = (max(counts),) if chain in bare else ()
                case "paddle.io":
                    counts = sweep_range.workers
                case "DALI GPU":
                    counts = counts if on_gpu and chain != "read" else ()
            settings += [LoaderSetting(backend, chain, count) for count in counts]
    backend = "DALI GPU" if on_gpu else "DALI CPU"
    if backend in sweep_range.backends and "config" in sweep_range.chains:
        base = LoaderSetting(backend, "config", max(sweep_range.threads))
        if "prefetch" in sweep_range.varied:
            settings += [replace(base, prefetch=depth, varied="prefetch") for depth in sweep_range.prefetch]
        if "decoder" in sweep_range.varied:
            decoders = _decoders(on_gpu=on_gpu, random_crop=random_crop)
            settings += [
                replace(base, decoder=name, dali=dali, varied="decoder") for name, dali in decoders.items()
            ]
    return settings


def _decoders(*, on_gpu: bool, random_crop: bool) -> dict[str, dict[str, Any]]:
    """Returns the settings of the decoder that are worth trying, by name."""
    decoders: dict[str, dict[str, Any]] = {AS_CONFIGURED: {}}
    if random_crop:
        decoders |= {"window": {"decode": "window"}, "whole": {"decode": "whole"}}
    if on_gpu:
        decoders["on the CPU"] = {"decode_on": "cpu"}
        decoders |= {f"hardware {load}": {"hw_decoder_load": load} for load in (0.65, 0.8, 1.0)}
    return decoders

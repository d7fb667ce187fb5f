"""Settings of data loaders that a benchmark tries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ppcls.bench.results.schema import Label
from ppcls.data.loaders.dali.settings import default_prefetch

Backend = Literal["bare DALI", "paddle.io", "DALI CPU", "DALI GPU"]
Stage = Literal["disk", "decode", "transform", "hand-over"]
STAGES: tuple[Stage, ...] = ("disk", "decode", "transform", "hand-over")
AS_CONFIGURED = "as configured"
_PREFETCH = (1, 2, 4, 8)
_MOST_SKIPPED = 9


@dataclass(frozen=True)
class LoaderSetting:
    """One way to load images.

    Attributes:
        backend: Implementation.
        workers: Threads of DALI; processes of paddle.io, 0 to work in this process.
        prefetch: Batches that DALI prepares ahead; None for the config's value.
        decoder: Name of the decoder's settings.
        dali: These settings, as keys of DataLoader.Train.loader.dali.
        mixup: Whether batches are mixed.
        stage: Last stage that runs; ``hand-over`` for the whole loader.
    """

    backend: Backend
    workers: int
    prefetch: int | None = None
    decoder: str = AS_CONFIGURED
    dali: dict[str, Any] = field(default_factory=dict, hash=False)
    mixup: bool = False
    stage: Stage = "hand-over"

    @property
    def by_dali(self) -> bool:
        """Whether this is our DALI loader."""
        return self.backend in ("DALI CPU", "DALI GPU")

    def labels(self) -> dict[str, Label]:
        """Returns the labels of the result row."""
        labels: dict[str, Label] = {"backend": self.backend, "workers": self.workers}
        if self.prefetch is not None:
            labels["prefetch"] = self.prefetch
        return labels | ({"decoder": self.decoder} if self.decoder != AS_CONFIGURED else {})

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


def list_backends(threads: Sequence[int], workers: Sequence[int], *, on_gpu: bool) -> Iterator[LoaderSetting]:
    """Yields each backend with each number of threads, or of paddle.io's workers."""
    yield LoaderSetting("bare DALI", max(threads))
    yield from (LoaderSetting("paddle.io", count) for count in workers)
    devices: tuple[Backend, ...] = ("DALI CPU", "DALI GPU") if on_gpu else ("DALI CPU",)
    yield from (LoaderSetting(backend, count) for backend in devices for count in threads)


def list_variants(base: LoaderSetting, *, random_crop: bool) -> Iterator[LoaderSetting]:
    """Yields our DALI loader with other prefetch depths, and with other settings of the decoder.

    Args:
        base: Backend and threads.
        random_crop: Whether the config's chain starts with a random crop, whose window alone can be decoded.
    """
    yield from (replace(base, prefetch=depth) for depth in _PREFETCH)
    decoders: dict[str, dict[str, Any]] = {}
    if random_crop:
        decoders |= {"window": {"decode": "window"}, "whole": {"decode": "whole"}}
    if base.backend == "DALI GPU":
        decoders["on the CPU"] = {"decode_on": "cpu"}
        decoders |= {f"hardware {load}": {"hw_decoder_load": load} for load in (0.65, 0.8, 1.0)}
    yield from (replace(base, decoder=name, dali=dali) for name, dali in decoders.items())

"""Settings of data loaders that the benchmark measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ppcls.bench.results.schema import Label
from ppcls.data.loaders.dali.settings import default_prefetch
from ppcls.errors import counted

Backend = Literal["bare DALI", "paddle.io", "DALI CPU", "DALI GPU"]
Stage = Literal["disk", "decode", "transform", "hand-over"]
STAGES: tuple[Stage, ...] = ("disk", "decode", "transform", "hand-over")
AS_CONFIGURED = "as configured"
SPEED_RATIO = "of paddle.io"  # name of the speed of DALI divided by that of paddle.io
_PREFETCH = (1, 2, 4, 8)
_MOST_SKIPPED = 33


@dataclass(frozen=True)
class LoaderSetting:
    """Setting of a data loader.

    Attributes:
        backend: Implementation of the loader.
        workers: Number of DALI threads or of paddle.io processes; 0 to load in this process.
        prefetch: Number of batches that DALI prepares ahead; None for the config's value.
        decoder: Name of the settings in ``dali``.
        dali: Settings of the decoder, as keys of ``DataLoader.Train.loader.dali``.
        mixup: Whether Mixup is applied to batches.
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
        """Whether the backend is ppcls's DALI loader."""
        return self.backend in ("DALI CPU", "DALI GPU")

    def labels(self) -> dict[str, Label]:
        """Returns the labels of the result row."""
        labels: dict[str, Label] = {"backend": self.backend, "workers": self.workers}
        if self.prefetch is not None:
            labels["prefetch"] = self.prefetch
        return labels | ({"decoder": self.decoder} if self.decoder != AS_CONFIGURED else {})

    def describe(self) -> str:
        """Returns a short description of the setting, such as ``paddle.io, 2 workers``."""
        unit = "worker" if self.backend == "paddle.io" else "thread"
        words = [self.backend, counted(self.workers, unit)]
        words += [f"prefetch {self.prefetch}"] if self.prefetch is not None else []
        words += [f"decoder {self.decoder}"] if self.decoder != AS_CONFIGURED else []
        return ", ".join(words)

    @property
    def skipped_batches(self) -> int:
        """Number of batches before the measurement: one more than the loader prepares ahead, at most 33."""
        if self.backend == "paddle.io":
            ahead = 2 * self.workers
        else:
            ahead = self.prefetch or default_prefetch(self.workers, on_gpu=self.backend == "DALI GPU")
        return min(ahead + 1, _MOST_SKIPPED)


def list_backends(threads: Sequence[int], workers: Sequence[int], *, on_gpu: bool) -> Iterator[LoaderSetting]:
    """Yields settings: bare DALI, paddle.io for each number of workers, and DALI for each thread count."""
    yield LoaderSetting("bare DALI", max(threads))
    yield from (LoaderSetting("paddle.io", count) for count in workers)
    devices: tuple[Backend, ...] = ("DALI CPU", "DALI GPU") if on_gpu else ("DALI CPU",)
    yield from (LoaderSetting(backend, count) for backend in devices for count in threads)


def list_variants(base: LoaderSetting, *, random_crop: bool) -> Iterator[LoaderSetting]:
    """Yields settings of ppcls's DALI loader with other prefetch depths, then with other decoder settings.

    Args:
        base: Setting with the backend and the number of threads.
        random_crop: Whether a random crop follows the decoder, so that decoding can be limited to its window.
    """
    yield from (replace(base, prefetch=depth) for depth in _PREFETCH)
    decoders: dict[str, dict[str, Any]] = {}
    if random_crop:
        decoders |= {"window": {"decode": "window"}, "whole": {"decode": "whole"}}
    if base.backend == "DALI GPU":
        decoders["on the CPU"] = {"decode_on": "cpu"}
        decoders |= {f"hardware {load}": {"hw_decoder_load": load} for load in (0.65, 0.8, 1.0)}
    yield from (replace(base, decoder=name, dali=dali) for name, dali in decoders.items())

"""Who takes part in the loaders' benchmark: which settings are tried, and how long that takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ppcls.bench.loader.subject import Chain
from ppcls.bench.results.results import Label
from ppcls.data.loaders.dali.settings import default_prefetch

Backend = Literal["read only", "bare DALI", "paddle.io", "DALI CPU", "DALI GPU"]
BACKENDS: tuple[Backend, ...] = ("read only", "bare DALI", "paddle.io", "DALI CPU", "DALI GPU")
Varied = Literal["workers", "prefetch", "decoder"]
VARIED: tuple[Varied, ...] = ("workers", "prefetch", "decoder")
AS_CONFIGURED = "as configured"
_PREFETCH = (1, 2, 4, 8)
_BEGINNING = 0.7  # seconds that a run takes to build and to end


@dataclass(frozen=True)
class Contender:
    """One setting.

    Attributes:
        backend: Who feeds.
        chain: What is done to the images.
        workers: Threads of DALI or of who only reads; processes of paddle.io, 0 for none beside this one.
        prefetch: DALI's batches made ahead; None for the config's.
        decoder: Name of the decoder's settings.
        dali: These settings, as DataLoader.Train.loader.dali has them.
        cold: Whether the images come from the disk.
        varied: Which setting it is one of the values of.
    """

    backend: Backend
    chain: Chain
    workers: int
    prefetch: int | None = None
    decoder: str = AS_CONFIGURED
    dali: dict[str, Any] = field(default_factory=dict, hash=False)
    cold: bool = False
    varied: Varied = "workers"

    @property
    def by_dali(self) -> bool:
        """Whether our loader by DALI feeds."""
        return self.backend in ("DALI CPU", "DALI GPU")

    def labels(self) -> dict[str, Label]:
        """Returns what its row is called by."""
        labels: dict[str, Label] = {
            "varied": self.varied,
            "cache": "cold" if self.cold else "warm",
            "chain": self.chain,
            "backend": self.backend,
            "workers": self.workers,
        }
        if self.prefetch is not None:
            labels["prefetch"] = self.prefetch
        return labels | ({"decoder": self.decoder} if self.varied == "decoder" else {})

    def describe(self) -> str:
        """Returns a few words."""
        unit = "workers" if self.backend == "paddle.io" else "threads"
        words = [self.backend, f"{self.workers} {unit if self.workers != 1 else unit[:-1]}"]
        words += [f"prefetch {self.prefetch}"] if self.prefetch is not None else []
        words += [f"decoder {self.decoder}"] if self.decoder != AS_CONFIGURED else []
        return ", ".join(words)


@dataclass(frozen=True)
class Wanted:
    """What of all possible settings is tried.

    Attributes:
        backends: These.
        chains: These.
        varied: These.
        threads: Of DALI and of who only reads.
        workers: Of paddle.io.
        prefetch: Of DALI.
        cold: Whether with a cold page cache, too.
    """

    backends: tuple[Backend, ...]
    chains: tuple[Chain, ...]
    varied: tuple[Varied, ...]
    threads: tuple[int, ...]
    workers: tuple[int, ...]
    prefetch: tuple[int, ...] = _PREFETCH
    cold: bool = False


def counts(cores: int) -> tuple[int, ...]:
    """Returns 1, 2, 4, … below ``cores``, and ``cores``."""
    powers = (1 << power for power in range(cores.bit_length()))
    return (*(each for each in powers if each < cores), cores)


def decoders(*, on_gpu: bool, windowed: bool) -> dict[str, dict[str, Any]]:
    """Returns the decoder's settings that are worth trying, by name.

    Args:
        on_gpu: Whether the GPU decodes.
        windowed: Whether the chain begins with a random crop, of which the window alone can be decoded.
    """
    found: dict[str, dict[str, Any]] = {AS_CONFIGURED: {}}
    if windowed:
        found |= {"window": {"decode": "window"}, "whole": {"decode": "whole"}}
    if on_gpu:
        found["on the CPU"] = {"decode_on": "cpu"}
        found |= {f"hardware {load}": {"hw_decoder_load": load} for load in (0.65, 0.8, 1.0)}
    return found


def line_up(wanted: Wanted, *, on_gpu: bool, windowed: bool, bare: Sequence[Chain]) -> list[Contender]:
    """Returns all contenders.

    Args:
        wanted: What is tried.
        on_gpu: Whether there is a GPU.
        windowed: As in `decoders`.
        bare: Chains of which there is a bare pipeline.
    """
    found = []
    for chain in wanted.chains if "workers" in wanted.varied else ():
        found += _by_workers(wanted, chain, on_gpu=on_gpu, bare=chain in bare)
    own: Backend = "DALI GPU" if on_gpu else "DALI CPU"
    if own in wanted.backends and "config" in wanted.chains:
        base = Contender(own, "config", max(wanted.threads))
        if "prefetch" in wanted.varied:
            found += [replace(base, prefetch=each, varied="prefetch") for each in wanted.prefetch]
        if "decoder" in wanted.varied:
            tried = decoders(on_gpu=on_gpu, windowed=windowed)
            found += [
                replace(base, decoder=name, dali=dali, varied="decoder") for name, dali in tried.items()
            ]
    return [*found, *(replace(each, cold=True) for each in found)] if wanted.cold else found


def _by_workers(wanted: Wanted, chain: Chain, *, on_gpu: bool, bare: bool) -> list[Contender]:
    found = []
    for backend in wanted.backends:
        match backend:
            case "read only":
                tried = wanted.threads if chain == "read" else ()
            case "bare DALI":
                tried = (max(wanted.threads),) if bare else ()
            case "paddle.io":
                tried = wanted.workers
            case "DALI CPU":
                tried = wanted.threads
            case "DALI GPU":
                tried = wanted.threads if on_gpu and chain != "read" else ()
        found += [Contender(backend, chain, count) for count in tried]
    return found


def seconds_a_run(contender: Contender, batch_size: int, seconds: float, image: float, cores: int) -> float:
    """Estimates how long one run takes.

    Args:
        contender: Who runs.
        batch_size: Images a batch.
        seconds: That are counted.
        image: Seconds that one core takes for an image.
        cores: That there are.
    """
    at_once = min(max(1, contender.workers), cores)
    batch = batch_size * image / at_once
    return _BEGINNING + not_counted(contender) * batch + max(seconds, LEAST * batch)


LEAST = 4  # batches that are counted, at least


def not_counted(contender: Contender) -> int:
    """Returns the batches of a run before the clock starts: as many as may have been made ahead, and one."""
    if contender.backend == "paddle.io":
        ahead = 2 * contender.workers
    else:
        on_gpu = contender.backend == "DALI GPU"
        ahead = contender.prefetch or default_prefetch(contender.workers, on_gpu=on_gpu)
    return min(ahead, 8) + 1

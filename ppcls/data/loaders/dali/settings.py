"""What DALI is run with: the config's settings, and ours where it says auto."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ppcls.config.sections.loader import Dali
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.runtime.start import Runtime

_DECODER_SETTINGS = (
    "hw_decoder_load",
    "device_memory_padding",
    "host_memory_padding",
    "preallocate_width_hint",
    "preallocate_height_hint",
)
# On an H200 with 16 cores the loader made 22,000 img/s by it, and 15,800 by DALI's own 0.65.
_HW_DECODER_LOAD = 0.9
_MANY = 4  # threads from which on four pipelines share them


@dataclass(frozen=True)
class DaliSettings:
    """All that a `ppcls.data.loaders.dali.loader.DaliLoader` is told about DALI.

    Attributes:
        device_id: GPU to work on; None for the CPU.
        threads: CPU threads of the pipeline.
        prefetch: Batches made ahead.
        exec_dynamic: Use DALI's dynamic executor.
        decode_on_cpu: Decode on the CPU, though pixels are transformed on a GPU.
        decode_window: Decode only the window of a random crop that comes first.
        decoder: Arguments of DALI's decoders beyond those of the chain.
        cores: CPU cores for its threads; None for all of the process.
    """

    device_id: int | None = None
    threads: int = 1
    prefetch: int = 2
    exec_dynamic: bool = True
    decode_on_cpu: bool = False
    decode_window: bool = True
    decoder: Mapping[str, Any] = field(default_factory=dict)
    cores: frozenset[int] | None = None

    @property
    def decodes_on_gpu(self) -> bool:
        """Whether the GPU decodes."""
        return self.device_id is not None and not self.decode_on_cpu

    @property
    def caches(self) -> bool:
        """Whether the decoder keeps decoded images, which it knows by their files' names."""
        return bool(self.decoder.get("cache_size"))

    @property
    def pipelines(self) -> int:
        """Pipelines that make batches in turn, with two under way in each.

        DALI has one of a pipeline's operators on the CPU at work at a time, and threads wait for the last of
        a batch's images at the end of each. With several pipelines, others work meanwhile.
        """
        if self.device_id is not None or self.caches:
            return 1
        return max(1, min(self.threads, self.prefetch // 2))

    def of_each(self) -> DaliSettings:
        """Returns the settings of one of the `pipelines`, which share threads and stock."""
        count = self.pipelines
        return replace(self, threads=-(-self.threads // count), prefetch=-(-self.prefetch // count))

    def fuse(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """Returns a chain as DALI will do it."""
        return fuse(ops, decode_window=self.decode_window, by_opencv=self.device_id is None)

    @contextmanager
    def on_cores(self) -> Iterator[None]:
        """Lets threads that are made within the block run on `cores` only."""
        if self.cores is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def usual_prefetch(threads: int, *, on_gpu: bool) -> int:
    """Returns the batches made ahead where the config does not say.

    On a CPU, where batches come unevenly, two more in stock are worth a tenth of the throughput, and several
    pipelines need a stock each.
    """
    if on_gpu:
        return 2
    return 4 if threads < _MANY else 8


def resolve(dali: Dali, runtime: Runtime) -> DaliSettings:
    """Fills in what the config leaves to us."""
    on_gpu = runtime.device_id is not None
    threads = dali.num_threads or runtime.cores
    decode_on_cpu = on_gpu and dali.decode_on == "cpu"
    return DaliSettings(
        device_id=runtime.device_id,
        threads=threads,
        prefetch=dali.prefetch_queue_depth or usual_prefetch(threads, on_gpu=on_gpu),
        exec_dynamic=dali.exec_dynamic,
        decode_window=dali.decode == "window" or (dali.decode == "auto" and not dali.cache_size),
        decode_on_cpu=decode_on_cpu,
        decoder=_decoder(dali) if on_gpu and not decode_on_cpu else _decoder_on_cpu(dali),
        cores=_cores(dali, runtime),
    )


def _decoder(dali: Dali) -> dict[str, Any]:
    """Returns what only decoders on a GPU take."""
    options: dict[str, Any] = {"hw_decoder_load": _HW_DECODER_LOAD} | {
        name: value for name in _DECODER_SETTINGS if (value := getattr(dali, name)) is not None
    }
    if dali.jpeg_fancy_upsampling:
        options["jpeg_fancy_upsampling"] = True
    if dali.cache_size:
        options |= {name: getattr(dali, name) for name in ("cache_size", "cache_type", "cache_threshold")}
    return options


def _decoder_on_cpu(dali: Dali) -> dict[str, Any]:
    return {"use_fast_idct": True} if dali.jpeg_fast_idct else {}


def _cores(dali: Dali, runtime: Runtime) -> frozenset[int] | None:
    """Returns this process's cores next to its GPU; None where they are all of them, none, or not known."""
    if dali.affinity is False or runtime.device_id is None or runtime.card is None:
        return None
    own = os.sched_getaffinity(0)
    near = runtime.card.near_cores() & own
    return near if near and near != own else None

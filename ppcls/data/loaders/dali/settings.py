"""Settings of DALI: those of the config, with ``auto`` resolved."""

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

_GPU_DECODER_SETTINGS = (
    "hw_decoder_load",
    "device_memory_padding",
    "host_memory_padding",
    "preallocate_width_hint",
    "preallocate_height_hint",
)
# On an H200 with 16 cores the loader made 22,000 images/s with it, and 15,800 with DALI's default of 0.65.
_HW_DECODER_LOAD = 0.9
_MANY_THREADS = 4  # enough for four pipelines
# From which the CPU decodes for a GPU that trains: decoding on an H200 that trains halved the throughput of a
# fast model, and 13 cores decoded 7,100 images/s.
_DECODING_CORES = 12


@dataclass(frozen=True)
class DaliSettings:
    """Settings of a `ppcls.data.loaders.dali.loader.DaliLoader`.

    Attributes:
        device_id: GPU to work on; None for the CPU.
        threads: CPU threads.
        prefetch: Batches made ahead.
        exec_dynamic: Whether to use DALI's dynamic executor.
        decode_on_cpu: Whether to decode on the CPU although a GPU transforms the pixels.
        decode_window: Whether to decode only the window of a random crop that follows the decoder.
        decoder: Arguments of DALI's decoders, in addition to those of the chain.
        cores: CPU cores for the threads; None for all cores of the process.
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
        """Whether the decoder caches decoded images, which it identifies by file name."""
        return bool(self.decoder.get("cache_size"))

    @property
    def pipelines(self) -> int:
        """Number of pipelines that take turns in making batches, with two batches under way in each.

        DALI runs one CPU operator of a pipeline at a time, and all its threads wait for the last image of the
        batch. With several pipelines, other threads work meanwhile.
        """
        if self.device_id is not None or self.caches:
            return 1
        return max(1, min(self.threads, self.prefetch // 2))

    def per_pipeline(self) -> DaliSettings:
        """Returns the settings of one of the `pipelines`, which share threads and prefetched batches."""
        count = self.pipelines
        return replace(self, threads=-(-self.threads // count), prefetch=-(-self.prefetch // count))

    def fuse(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """Returns a chain with the transforms fused that DALI does in one operator."""
        return fuse(ops, decode_window=self.decode_window, by_opencv=self.device_id is None)

    @contextmanager
    def on_cores(self) -> Iterator[None]:
        """Restricts threads that are started within the block to `cores`."""
        if self.cores is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def default_prefetch(threads: int, *, on_gpu: bool) -> int:
    """Returns the default number of batches to prefetch.

    On a CPU batches take unequal times, and two more are worth a tenth of the throughput.
    """
    if on_gpu:
        return 2
    return 4 if threads < _MANY_THREADS else 8


def resolve_dali_settings(dali: Dali, runtime: Runtime) -> DaliSettings:
    """Replaces the config's ``auto`` by values for this machine."""
    on_gpu = runtime.device_id is not None
    threads = dali.num_threads or runtime.cores
    decode_on_cpu = on_gpu and (dali.decode_on == "cpu" or _leaves_gpu_to_training(dali, threads))
    if on_gpu and not decode_on_cpu:
        decoder = _gpu_decoder_options(dali)
    else:
        decoder = {"use_fast_idct": True} if dali.jpeg_fast_idct else {}
    return DaliSettings(
        device_id=runtime.device_id,
        threads=threads,
        prefetch=dali.prefetch_queue_depth or default_prefetch(threads, on_gpu=on_gpu),
        exec_dynamic=dali.exec_dynamic,
        decode_window=dali.decode == "window" or (dali.decode == "auto" and not dali.cache_size),
        decode_on_cpu=decode_on_cpu,
        decoder=decoder,
        cores=_cores_near_gpu(dali, runtime),
    )


def _leaves_gpu_to_training(dali: Dali, threads: int) -> bool:
    """Returns whether ``decode_on: auto`` means the CPU; a setting of the GPU's decoder means the GPU."""
    gpu_settings = ("cache_size", "jpeg_fancy_upsampling", *_GPU_DECODER_SETTINGS)
    return (
        dali.decode_on == "auto"
        and threads >= _DECODING_CORES
        and not any(getattr(dali, name) for name in gpu_settings)
    )


def _gpu_decoder_options(dali: Dali) -> dict[str, Any]:
    options: dict[str, Any] = {"hw_decoder_load": _HW_DECODER_LOAD} | {
        name: value for name in _GPU_DECODER_SETTINGS if (value := getattr(dali, name)) is not None
    }
    if dali.jpeg_fancy_upsampling:
        options["jpeg_fancy_upsampling"] = True
    if dali.cache_size:
        options |= {name: getattr(dali, name) for name in ("cache_size", "cache_type", "cache_threshold")}
    return options


def _cores_near_gpu(dali: Dali, runtime: Runtime) -> frozenset[int] | None:
    """Returns this process's cores near its GPU; None if these are all of its cores, none, or unknown."""
    if dali.affinity is False or runtime.device_id is None or runtime.card is None:
        return None
    available = os.sched_getaffinity(0)
    near = runtime.card.near_cores() & available
    return near if near and near != available else None

"""Converts the settings of DALI in the config, including ``auto``, into values for this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ppcls.data.loaders.section import Dali
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
# On an H200 with 16 cores, the loader delivered 22,000 images/s with 0.9, and 15,800 with DALI's default,
# 0.65.
_HW_DECODER_LOAD = 0.9
_MAX_PIPELINES = 16  # maximum number of pipelines by default
# Maximum size of the batches in advance on a CPU by default, in bytes. With buffers and encoded images, a
# process used 1.4 to 2.1 times this size for photographs of 500×375 pixels.
_MAX_BATCHES = 2 << 30
_CALL_THREADS = 4  # maximum number of threads for a call into Python
# Minimum number of CPU threads for which `decode_on: auto` selects the CPU during training. Decoding on an
# H200 that trains halved the throughput of a fast model. The CPU decoded 7,100 images/s with 13 busy cores.
_DECODING_THREADS = 12


@dataclass(frozen=True)
class DaliSettings:
    """Settings of a `ppcls.data.loaders.dali.loader.DaliLoader`.

    Attributes:
        device_id: Id of the GPU that transforms images; None for the CPU.
        threads: Number of CPU threads.
        prefetch: Number of batches that are prepared in advance.
        exec_dynamic: Whether to use DALI's dynamic executor.
        decode_on_cpu: Whether the CPU decodes images and the GPU transforms them.
        decode_window: Whether to decode only the window of a random crop that follows the decoder.
        decoder: Additional arguments of DALI's decoders.
        cores: CPU cores for the threads; None for all cores that are available to the process.
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
        """Whether the GPU decodes images."""
        return self.device_id is not None and not self.decode_on_cpu

    @property
    def caches(self) -> bool:
        """Whether the decoder caches decoded images, which it identifies by file name."""
        return bool(self.decoder.get("cache_size"))

    @property
    def pipelines(self) -> int:
        """Number of pipelines that prepare batches in turn. Each pipeline has two batches in progress.

        DALI runs one CPU operator of a pipeline at a time, and all threads of the pipeline wait for the last
        image of the batch. With several pipelines, the threads of the other pipelines work meanwhile.
        """
        if self.device_id is not None or self.caches:
            return 1
        return max(1, min(self.threads, self.prefetch // 2))

    def per_pipeline(self) -> DaliSettings:
        """Returns the settings of one pipeline: `threads` and `prefetch` are divided by `pipelines`."""
        count = self.pipelines
        return replace(self, threads=-(-self.threads // count), prefetch=-(-self.prefetch // count))

    @property
    def python_threads(self) -> int:
        """Number of threads of a pipeline for calls into Python.

        DALI runs only one call into Python at a time in a process, so a slow call delays all pipelines. To
        make calls faster, even a pipeline with one thread uses several threads for them.
        """
        return max(self.per_pipeline().threads, min(self.threads // 2, _CALL_THREADS))

    def fuse(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """Returns the chain, with transforms fused where one DALI operator does the work of several."""
        return fuse(ops, decode_window=self.decode_window, by_opencv=self.device_id is None)

    @contextmanager
    def on_cores(self) -> Iterator[None]:
        """Returns a context in which new threads run only on `cores`."""
        if self.cores is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def default_prefetch(threads: int, *, on_gpu: bool, batch_bytes: int = 0) -> int:
    """Returns the default number of batches to prefetch.

    On a CPU, there are two batches for each of the `DaliSettings.pipelines`. Large batches get fewer
    pipelines, but at least two.

    Args:
        threads: Number of CPU threads.
        on_gpu: Whether the batches are in GPU memory.
        batch_bytes: Size of the images of a batch in bytes; 0 for no limit.
    """
    if on_gpu:
        return 2
    fitting = _MAX_BATCHES // (2 * batch_bytes) if batch_bytes else _MAX_PIPELINES
    return 2 * max(2, min(threads, _MAX_PIPELINES, fitting))


def resolve_dali_settings(dali: Dali, runtime: Runtime, batch_bytes: int = 0) -> DaliSettings:
    """Returns the settings of the config, with ``auto`` replaced by values for this machine.

    Args:
        dali: Settings of the config.
        runtime: Device and cores.
        batch_bytes: Size of the images of a batch in bytes; 0 for no limit of the batches in advance.
    """
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
        prefetch=dali.prefetch_queue_depth
        or default_prefetch(threads, on_gpu=on_gpu, batch_bytes=batch_bytes),
        exec_dynamic=dali.exec_dynamic,
        decode_window=dali.decode == "window" or (dali.decode == "auto" and not dali.cache_size),
        decode_on_cpu=decode_on_cpu,
        decoder=decoder,
        cores=_cores_near_gpu(dali, runtime),
    )


def _leaves_gpu_to_training(dali: Dali, threads: int) -> bool:
    """Returns whether ``decode_on: auto`` selects the CPU.

    It selects the GPU if there are few CPU threads, or if a setting of the GPU's decoder is set.
    """
    gpu_settings = ("cache_size", "jpeg_fancy_upsampling", *_GPU_DECODER_SETTINGS)
    return (
        dali.decode_on == "auto"
        and threads >= _DECODING_THREADS
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
    """Returns the CPU cores of this process that are near its GPU.

    Returns None if the cores are unknown, or if none or all cores of the process are near the GPU.
    """
    if dali.affinity is False or runtime.device_id is None or runtime.card is None:
        return None
    available = os.sched_getaffinity(0)
    near = runtime.card.near_cores() & available
    return near if near and near != available else None

"""Converts the settings of DALI in the config, including ``auto``, into values for this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from ppcls.data.loaders.section import Dali
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.runtime.hardware import Card
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
DECODING_THREADS = 12
# Smallest number of cores of which the training thread keeps one.
_MIN_CORES_TO_KEEP = 4
# Minimum number of CPU threads for which `decode_on: auto` lets both devices decode during training. On two
# H200 with 8 cores, whole runs were 10 and 12 % faster with 3/5 of the batches on the GPU than with all of
# them. A core decodes about 550 images/s, so 6 cores suffice for 2/5 of the 8,000 images/s of a fast model.
SHARING_THREADS = 6
# Default shares of the batches that the GPU decodes with `decode_on: both`, for few and many CPU threads. On
# these H200, training reached 6,485 and 7,135 images/s with 3/5 of the batches, and 5,049 and 6,530 with 1/2.
# On two H200 with 16 cores each, it reached 15,195 images/s with 1/6, and 14,599 with 1/3.
_GPU_SHARE_FEW_THREADS = 3 / 5
_GPU_SHARE = 1 / 6
# Smallest number of threads for which two pipelines decode on the CPU for a GPU. While one pipeline waits for
# the last image of a batch, the threads of the other one work. On an H200 with 16 cores, training reached
# 8,310 images/s with two pipelines, and 7,450 to 8,160 with one.
_TWO_PIPELINES_FROM = 8
# Smallest GPU memory in MiB for several pipelines by default. Each of them needs memory for its batches.
MEMORY_FOR_PIPELINES = 32 << 10
_MAX_TURNS = 6  # maximum number of pipelines that take turns, each of which needs GPU memory
# Number of CPU threads of a pipeline that decodes on the GPU, beside others. On an H200, 4 threads suffice
# for 23,000 images/s.
_GPU_DECODING_THREADS = 4


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
        turns: For each of the pipelines that prepare batches in turn, whether it decodes on the GPU; empty if
            all batches are decoded on the same device.
        cpu_decoder: Additional arguments of the decoders of pipelines that decode on the CPU in their turn.
    """

    device_id: int | None = None
    threads: int = 1
    prefetch: int = 2
    exec_dynamic: bool = True
    decode_on_cpu: bool = False
    decode_window: bool = True
    decoder: Mapping[str, Any] = field(default_factory=dict)
    cores: frozenset[int] | None = None
    turns: tuple[bool, ...] = ()
    cpu_decoder: Mapping[str, Any] = field(default_factory=dict)

    @property
    def decodes_on_gpu(self) -> bool:
        """Whether the GPU decodes images, of all batches or in turn with the CPU."""
        return self.device_id is not None and not self.decode_on_cpu

    @property
    def decoding(self) -> Literal["cpu", "gpu", "both"]:
        """Device that decodes images."""
        if any(self.turns):
            return "both"
        return "gpu" if self.decodes_on_gpu else "cpu"

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
        if self.turns:
            return len(self.turns)
        if self.device_id is not None or self.caches:
            return 1
        return max(1, min(self.threads, self.prefetch // 2))

    def per_pipeline(self, number: int = 0) -> DaliSettings:
        """Returns the settings of one pipeline: `threads` and `prefetch` are divided by `pipelines`.

        If pipelines take turns to decode on the CPU and on the GPU, those that decode on the CPU share the
        threads, and each of the others has a few more.

        Args:
            number: Number of the pipeline, 0..pipelines-1.
        """
        count = self.pipelines
        prefetch = -(-self.prefetch // count)
        if not self.turns:
            return replace(self, threads=-(-self.threads // count), prefetch=prefetch)
        one = replace(self, prefetch=prefetch, turns=(), cpu_decoder={})
        if self.turns[number]:
            return replace(one, threads=min(self.threads, _GPU_DECODING_THREADS))
        threads = -(-self.threads // self.turns.count(False))
        return replace(one, threads=threads, decode_on_cpu=True, decoder=self.cpu_decoder)

    def per_device(self) -> list[DaliSettings]:
        """Returns the settings of one pipeline for each device that decodes images."""
        numbers = {turn: number for number, turn in enumerate(self.turns)}
        return [self.per_pipeline(number) for number in numbers.values()] or [self]

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

    def move_thread(self) -> None:
        """Moves the current thread to `cores`."""
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)

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


def resolve_dali_settings(
    dali: Dali, runtime: Runtime, batch_bytes: int = 0, *, training: bool = False
) -> DaliSettings:
    """Returns the settings of the config, with ``auto`` replaced by values for this machine.

    Args:
        dali: Settings of the config.
        runtime: Device and cores.
        batch_bytes: Size of the images of a batch in bytes; 0 for no limit of the batches in advance.
        training: Whether the GPU trains meanwhile, so that it decodes more slowly.
    """
    on_gpu = runtime.device_id is not None
    cores = min(runtime.cores, len(runtime.cpus) or runtime.cores)
    kept = 1 if on_gpu and cores >= _MIN_CORES_TO_KEEP else 0
    threads = dali.num_threads or cores - kept
    decoding = dali.num_threads or cores
    if on_gpu and training and _shares_decoding(dali, decoding, runtime.card):
        dali = dali.model_copy(update={"decode_on": "both"})
    decode_on_cpu = on_gpu and (dali.decode_on == "cpu" or _leaves_gpu_to_training(dali, decoding))
    turns: tuple[bool, ...] = ()
    if on_gpu and dali.decode_on == "both":
        few = decoding < DECODING_THREADS
        turns = share_turns(dali.gpu_share or (_GPU_SHARE_FEW_THREADS if few else _GPU_SHARE))
    elif decode_on_cpu and threads >= _TWO_PIPELINES_FROM and has_memory_for_pipelines(runtime.card):
        turns = (False, False)
    cpu_decoder = {"use_fast_idct": True} if dali.jpeg_fast_idct else {}
    decoder = _gpu_decoder_options(dali) if on_gpu and not decode_on_cpu else cpu_decoder
    return DaliSettings(
        device_id=runtime.device_id,
        threads=threads,
        prefetch=dali.prefetch_queue_depth
        or default_prefetch(threads, on_gpu=on_gpu, batch_bytes=batch_bytes) * max(1, len(turns)),
        exec_dynamic=dali.exec_dynamic,
        decode_window=dali.decode == "window" or (dali.decode == "auto" and not dali.cache_size),
        decode_on_cpu=decode_on_cpu,
        decoder=decoder,
        cores=None if dali.affinity is False else _cores_for_threads(runtime.cpus, kept),
        turns=turns,
        cpu_decoder=cpu_decoder if turns else {},
    )


def has_memory_for_pipelines(card: Card | None) -> bool:
    """Returns whether a card has enough memory for several pipelines; False if it is unknown."""
    return card is not None and card.total >= MEMORY_FOR_PIPELINES


def share_turns(share: float) -> tuple[bool, ...]:
    """Returns whose turn it is to decode a batch, True for the GPU, in the shortest period that is repeated.

    Args:
        share: Share of the batches that the GPU decodes, 0..1. It is rounded to a fraction between 1/6 and
            5/6, with a denominator of at most 6.
    """
    smallest = 1 / _MAX_TURNS
    ratio = Fraction(min(max(share, smallest), 1 - smallest)).limit_denominator(_MAX_TURNS)
    on_gpu = ratio.numerator
    period = ratio.denominator
    return tuple((turn + 1) * on_gpu // period > turn * on_gpu // period for turn in range(period))


def _shares_decoding(dali: Dali, threads: int, card: Card | None) -> bool:
    """Returns whether ``decode_on: auto`` selects both devices during training."""
    enough = SHARING_THREADS <= threads < DECODING_THREADS and has_memory_for_pipelines(card)
    return dali.decode_on == "auto" and enough and not dali.sets_gpu_decoder


def _leaves_gpu_to_training(dali: Dali, threads: int) -> bool:
    """Returns whether ``decode_on: auto`` selects the CPU.

    It selects the GPU if there are few CPU threads, or if a setting of the GPU's decoder is set.
    """
    return dali.decode_on == "auto" and threads >= DECODING_THREADS and not dali.sets_gpu_decoder


def _gpu_decoder_options(dali: Dali) -> dict[str, Any]:
    # Beside a CPU that decodes, the hardware decodes all images of the GPU's batches, because the GPU's other
    # decoder needs the CPU's threads, too.
    load = 1.0 if dali.decode_on == "both" else _HW_DECODER_LOAD
    options: dict[str, Any] = {"hw_decoder_load": load} | {
        name: value for name in _GPU_DECODER_SETTINGS if (value := getattr(dali, name)) is not None
    }
    if dali.jpeg_fancy_upsampling:
        options["jpeg_fancy_upsampling"] = True
    if dali.cache_size:
        options |= {name: getattr(dali, name) for name in ("cache_size", "cache_type", "cache_threshold")}
    return options


def _cores_for_threads(cpus: frozenset[int], kept: int) -> frozenset[int] | None:
    """Returns the CPU cores for DALI's threads; None for all cores that are available to the process.

    The training thread may run on all cores. The kept cores are the only ones on which DALI's threads do not
    compete with it, so the operating system moves it there. Threads that it starts later are not limited to
    these cores, as they would be if the training thread itself were.

    Args:
        cpus: Cores of this process; empty if they are unknown.
        kept: Number of cores without threads of DALI.
    """
    cores = frozenset(sorted(cpus)[: len(cpus) - kept])
    return cores if cores and cores != os.sched_getaffinity(0) else None

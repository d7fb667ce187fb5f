"""Suggests which setting to change first if training waits for data. The rules use measured speeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ppcls.data.loaders.dali.settings import DECODING_THREADS, SHARING_THREADS
from ppcls.data.loaders.section import Dali
from ppcls.engine.profiling.scaling import DATA, EXCHANGE, OTHER, UNEQUAL
from ppcls.errors import counted
from ppcls.report.summary.rounding import format_ratio

_LOADER = "DataLoader.Train.loader"
_NEGLIGIBLE = 0.05  # largest share of waiting time that needs no change
_LARGE = 8  # smallest ratio of stored to used pixels for which smaller files are suggested
_HW_DECODER_LOAD = 0.65  # DALI's default; with less, the hardware decoder is often idle


@dataclass(frozen=True)
class RankFeed:
    """How a rank of a run gets its images.

    Attributes:
        by_dali: Whether DALI loads the images.
        dali_can: Whether DALI supports all transforms of the data set on this device.
        can_share: Whether CPU and GPU could both decode, and do not yet.
        cores: CPU cores per process.
        workers: Workers of paddle.io per process.
        decodes: Whether images are decoded, and not stored as arrays.
        caches: Whether ``DataLoader.Train.cache`` is set.
    """

    by_dali: bool
    dali_can: bool
    can_share: bool
    cores: int
    workers: int
    decodes: bool
    caches: bool


def advise_ranks(feed: RankFeed) -> dict[str, str]:
    """Returns what to do against each loss of scaling, by its cause."""
    data = []
    if not feed.by_dali and feed.dali_can:
        data.append("set Global.use_dali=True")
    if not feed.by_dali and feed.workers < feed.cores:
        data.append(f"raise {_LOADER}.num_workers from {feed.workers} to {feed.cores}")
    if feed.decodes and not feed.caches:
        if feed.by_dali and feed.can_share:
            data.append(f"set {_LOADER}.dali.decode_on=both")
        data.append("keep the decoded images (DataLoader.Train.cache=memory or disk)")
    data.append("use more CPU cores per process")
    return {
        DATA: f"{', or '.join(data[:2])}; --dry-run measures the loader alone",
        EXCHANGE: "use larger batches or Global.update_freq, or AMP level O2, which halves the gradients",
        UNEQUAL: "look for other programs on its GPU and cores, or a GPU that is throttled",
        OTHER: "raise Global.print_batch_step, or look for slow hooks and other programs on the machine",
    }


@dataclass(frozen=True)
class DiskSpeed:
    """Speed at which images are read that are not in memory.

    Attributes:
        images: Images per second, over all ranks.
        megabytes: Megabytes (10^6 bytes) per second, over all ranks.
        fits: Whether the memory of the machine can hold the whole data set, so that only a first epoch reads
            from the disk.
    """

    images: float
    megabytes: float
    fits: bool

    def describe(self) -> str:
        """Returns the speed as text."""
        epochs = (
            "the data set fits into memory after the first epoch" if self.fits else "needed in every epoch"
        )
        return f"{self.images:.0f} images/s ({self.megabytes:.0f} MB/s) for images not in memory; {epochs}"


@dataclass(frozen=True)
class LoadingSpeed:
    """Speeds of a loader and of training, and the settings that affect the loader.

    Attributes:
        loader: Images per second of the loader without training, over all ranks.
        step: Images per second of training that repeats one batch, over all ranks.
        waiting: Share of training time spent waiting for data, 0..1.
        by_dali: Whether DALI loads the data.
        dali_can: Whether DALI supports all transforms of the data set on this device.
        on_gpu: Whether the run uses a GPU.
        cores: CPU cores per process.
        workers: Workers of paddle.io per process.
        threads: Threads of DALI per process.
        decoding: Device that decodes images with DALI during training.
        can_share: Whether the GPU has enough memory to decode on both devices.
        dali: Section ``dali`` of the loader's config.
        picture: Mean number of pixels of the stored images; None if unknown.
        pixels_used: Number of pixels of each image that the model gets.
        disk: Speed of the disk; None if it is unknown.
    """

    loader: float
    step: float
    waiting: float
    by_dali: bool
    dali_can: bool
    on_gpu: bool
    cores: int
    workers: int
    threads: int
    decoding: Literal["cpu", "gpu", "both"]
    can_share: bool
    dali: Dali
    picture: float | None
    pixels_used: int
    disk: DiskSpeed | None = None


def advise(speed: LoadingSpeed) -> str:
    """Returns which setting to change first and why, or that nothing needs to change."""
    times = format_ratio([speed.loader / speed.step])
    if speed.disk is not None and not speed.disk.fits and speed.disk.images < speed.step:
        return (
            "use a faster disk, containers (ppcls dataset convert) or smaller images (ppcls dataset resize): "
            "the data set is larger than the memory, and its disk reads "
            f"{speed.disk.images:.0f} images/s, but training could use {speed.step:.0f}"
        )
    if speed.waiting <= _NEGLIGIBLE:
        return f"none: the loader is fast enough (alone, it is {times} times as fast as training)"
    rules = _rules_for_dali(speed) if speed.by_dali else _rules_for_paddle(speed)
    change = next(iter([*rules, *_general_rules(speed)]))
    return f"{change} (alone, the loader is {times} times as fast as training)"


def _rules_for_paddle(speed: LoadingSpeed) -> Iterator[str]:
    if speed.dali_can:
        yield "set Global.use_dali=True: DALI reads and decodes in its own threads"
    if speed.workers < speed.cores:
        yield (
            f"raise {_LOADER}.num_workers from {speed.workers} to {speed.cores}: the process has "
            f"{counted(speed.cores, 'core')}"
        )


def _rules_for_decoding(speed: LoadingSpeed) -> Iterator[str]:
    """Yields another device to decode on. The numbers of cores are those of ``decode_on: auto``."""
    several = speed.can_share and speed.cores >= SHARING_THREADS
    if speed.decoding == "gpu" and speed.loader > speed.step:
        slow = "a GPU decodes slowly while it trains, and the loader alone was fast enough"
        if speed.cores >= DECODING_THREADS:
            yield f"set {_LOADER}.dali.decode_on=cpu: {slow}"
        elif several:
            yield f"set {_LOADER}.dali.decode_on=both: {slow}"
    elif speed.decoding == "cpu" and several:
        yield f"set {_LOADER}.dali.decode_on=both: the GPU can decode a part of the batches"


def _rules_for_dali(speed: LoadingSpeed) -> Iterator[str]:
    dali = speed.dali
    if dali.num_threads is not None and speed.threads < speed.cores - 1:
        yield (
            f"set {_LOADER}.dali.num_threads=auto: it is {speed.threads}, but the process has "
            f"{counted(speed.cores, 'core')}"
        )
    if speed.on_gpu and not dali.cache_size:
        yield from _rules_for_decoding(speed)
    if dali.prefetch_queue_depth == 1:
        yield f"set {_LOADER}.dali.prefetch_queue_depth=auto: with 1, no batch is prepared during a step"
    if not dali.exec_dynamic:
        yield f"set {_LOADER}.dali.exec_dynamic=True: without it, every batch is copied"
    if dali.decode == "whole" and not dali.cache_size:
        yield f"set {_LOADER}.dali.decode=auto: then only the randomly cropped part of an image is decoded"
    if not speed.on_gpu:
        return
    if dali.hw_decoder_load is not None and dali.hw_decoder_load < _HW_DECODER_LOAD:
        yield (
            f"set {_LOADER}.dali.hw_decoder_load=auto: it is {dali.hw_decoder_load:g}, "
            "so the GPU's decoder is often idle"
        )
    if dali.jpeg_fancy_upsampling:
        yield f"set {_LOADER}.dali.jpeg_fancy_upsampling=False: it slows down the GPU's decoder"


def _general_rules(speed: LoadingSpeed) -> Iterator[str]:
    if speed.picture is not None and speed.picture >= _LARGE * speed.pixels_used:
        yield (
            f"store smaller images (DataLoader.Train.dataset): they have {speed.picture / 1e6:.1f} million "
            f"pixels on average, {speed.picture / speed.pixels_used:.0f} times as many as training uses"
        )
    if speed.by_dali and not speed.on_gpu and not speed.dali.jpeg_fast_idct:
        yield f"set {_LOADER}.dali.jpeg_fast_idct=True for JPEG: faster, with small differences in pixels"
    yield (
        f"use more CPU cores per process, or fewer DataLoader.Train.dataset.transform_ops: the settings "
        f"already make full use of all {counted(speed.cores, 'core')}"
    )

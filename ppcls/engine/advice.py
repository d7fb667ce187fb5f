"""What to change first where training waits for its data: rules over measured facts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ppcls.config.sections.loader import Dali

_LOADER = "DataLoader.Train.loader"
_NO_MATTER = 0.05  # share of a step spent waiting that nobody would notice
_LARGE = 8  # times the pixels that training keeps: most of reading and decoding is for nothing
_CORES = 8  # from which a process may well decode for a GPU
_HW_DECODER_LOAD = 0.65  # DALI's own; below it the hardware decoder idles


@dataclass(frozen=True)
class Feeding:
    """A loader and the step that it feeds.

    Attributes:
        loader: Images a second that the loader makes by itself, over all ranks.
        step: Images a second that the step takes by itself.
        waiting: Share of a fed step that waits for data, 0..1.
        by_dali: Whether DALI feeds.
        dali_can: Whether DALI has a form of every transform, on this device.
        on_gpu: Whether the run is on a GPU.
        cores: CPU cores of a process.
        workers: Of paddle.io, a process.
        threads: Of DALI.
        dali: DALI's section of the config.
        picture: Mean pixels of an image as stored; None where it is not known.
        kept: Pixels of an image as trained on.
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
    dali: Dali
    picture: float | None
    kept: int


def advise(feeding: Feeding) -> str:
    """Returns what to change first, by its key in the config, and why; or that nothing need be."""
    ratio = feeding.loader / feeding.step
    if feeding.waiting <= _NO_MATTER:
        return f"nothing: the loader keeps up; alone it makes {ratio:.2f} times what the step takes"
    rules = _for_dali(feeding) if feeding.by_dali else _for_paddle(feeding)
    change = next(iter([*rules, *_for_both(feeding)]))
    return f"{change} (alone, the loader makes {ratio:.2f} times what the step takes)"


def _for_paddle(feeding: Feeding) -> Iterator[str]:
    if feeding.dali_can:
        yield "set Global.use_dali=True: DALI reads and decodes in threads of its own"
    if feeding.workers < feeding.cores:
        yield (
            f"raise {_LOADER}.num_workers from {feeding.workers} to {feeding.cores}: "
            f"the process has {feeding.cores} cores"
        )


def _for_dali(feeding: Feeding) -> Iterator[str]:
    dali = feeding.dali
    competes = feeding.on_gpu and feeding.loader > feeding.step and dali.decode_on != "cpu"
    if competes and feeding.cores >= _CORES and not dali.cache_size:
        yield f"set {_LOADER}.dali.decode_on=cpu: a GPU that trains is slow to decode, and alone it kept up"
    if feeding.threads < feeding.cores:
        yield (
            f"set {_LOADER}.dali.num_threads=auto: it is {feeding.threads}, "
            f"and the process has {feeding.cores} cores"
        )
    if dali.prefetch_queue_depth == 1:
        yield f"set {_LOADER}.dali.prefetch_queue_depth=auto: with 1 nothing is made while the step runs"
    if not dali.exec_dynamic:
        yield f"set {_LOADER}.dali.exec_dynamic=True: without it every batch is copied"
    if dali.decode == "whole" and not dali.cache_size:
        yield f"set {_LOADER}.dali.decode=auto: only what a random crop cuts is decoded then"
    if not feeding.on_gpu:
        return
    if dali.hw_decoder_load is not None and dali.hw_decoder_load < _HW_DECODER_LOAD:
        yield (
            f"set {_LOADER}.dali.hw_decoder_load=auto: it is {dali.hw_decoder_load:g}, "
            "and the GPU's decoder idles"
        )
    if dali.jpeg_fancy_upsampling:
        yield f"set {_LOADER}.dali.jpeg_fancy_upsampling=False: it slows the GPU's decoder"


def _for_both(feeding: Feeding) -> Iterator[str]:
    if feeding.picture is not None and feeding.picture >= _LARGE * feeding.kept:
        yield (
            f"store smaller images (DataLoader.Train.dataset): one has {feeding.picture / 1e6:.1f} million "
            f"pixels in the mean, and {feeding.picture / feeding.kept:.0f} times fewer are trained on"
        )
    if feeding.by_dali and not feeding.on_gpu and not feeding.dali.jpeg_fast_idct:
        yield f"set {_LOADER}.dali.jpeg_fast_idct=True for JPEG: rougher by a grey level or two, faster"
    yield (
        f"give the process more CPU cores, or DataLoader.Train.dataset.transform_ops less to do: "
        f"all {feeding.cores} cores are used as well as the settings can"
    )

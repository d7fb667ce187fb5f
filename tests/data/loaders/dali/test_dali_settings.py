"""DALI's settings: those of the config, and those that ``auto`` is resolved to."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from ppcls.data.loaders.dali.settings import DaliSettings, resolve_dali_settings
from ppcls.data.loaders.section import Dali
from ppcls.runtime.start import Runtime

CPU = Runtime(cores=3)
GPU = Runtime(device="gpu", device_id=1, cores=3)


@dataclass(frozen=True)
class _Card:
    """A GPU that this machine need not have."""

    cores: frozenset[int]

    def near_cores(self) -> frozenset[int]:
        return self.cores


def test_auto_is_resolved() -> None:
    assert resolve_dali_settings(Dali(), CPU) == DaliSettings(threads=3, prefetch=6)
    load = {"hw_decoder_load": 0.9}
    assert resolve_dali_settings(Dali(num_threads=1), CPU) == DaliSettings(threads=1, prefetch=4)
    assert resolve_dali_settings(Dali(num_threads=64), CPU) == DaliSettings(threads=64, prefetch=32)
    assert resolve_dali_settings(Dali(), GPU) == DaliSettings(
        device_id=1, threads=3, prefetch=2, decoder=load
    )
    words = dict.fromkeys(("num_threads", "prefetch_queue_depth", "hw_decoder_load", "affinity"), "auto")
    assert Dali.model_validate(words) == Dali()


@pytest.mark.parametrize(
    ("rows", "prefetch", "pipelines"), [(64, 32, 16), (128, 26, 13), (256, 12, 6), (4096, 4, 2)]
)
def test_prefetched_batches_on_a_cpu_fit_into_2_gib(rows: int, prefetch: int, pipelines: int) -> None:
    batch_bytes = rows * 3 * 224 * 224 * 4
    found = resolve_dali_settings(Dali(num_threads=16), CPU, batch_bytes)
    assert (found.prefetch, found.pipelines) == (prefetch, pipelines)
    assert found.pipelines * found.per_pipeline().prefetch == prefetch
    chosen = resolve_dali_settings(Dali(num_threads=16, prefetch_queue_depth=32), CPU, batch_bytes)
    assert chosen.prefetch == 32
    assert resolve_dali_settings(Dali(num_threads=16), GPU, batch_bytes).prefetch == 2


@pytest.mark.parametrize(
    ("settings", "pipelines", "of_each"),
    [
        (DaliSettings(threads=2, prefetch=4), 2, (1, 2)),
        (DaliSettings(threads=16, prefetch=8), 4, (4, 2)),
        (DaliSettings(threads=64, prefetch=32), 16, (4, 2)),
        (DaliSettings(threads=5, prefetch=5), 2, (3, 3)),
        (DaliSettings(threads=1, prefetch=8), 1, (1, 8)),
        (DaliSettings(threads=8, prefetch=1), 1, (8, 1)),
        (DaliSettings(device_id=0, threads=8, prefetch=8), 1, (8, 8)),
        (DaliSettings(threads=8, prefetch=8, decoder={"cache_size": 1}), 1, (8, 8)),
    ],
)
def test_pipelines_share_threads_and_prefetch(
    settings: DaliSettings, pipelines: int, of_each: tuple[int, int]
) -> None:
    each = settings.per_pipeline()
    assert (settings.pipelines, each.threads, each.prefetch) == (pipelines, *of_each)


def test_config_overrides_auto() -> None:
    dali = Dali(
        num_threads=5,
        prefetch_queue_depth=7,
        exec_dynamic=False,
        decode="whole",
        hw_decoder_load=0.7,
        device_memory_padding=1 << 20,
        preallocate_width_hint=4000,
        jpeg_fancy_upsampling=True,
    )
    found = resolve_dali_settings(dali, GPU)
    assert (found.threads, found.prefetch, found.exec_dynamic, found.decode_window) == (5, 7, False, False)
    assert found.decoder == {
        "hw_decoder_load": 0.7,
        "device_memory_padding": 1 << 20,
        "preallocate_width_hint": 4000,
        "jpeg_fancy_upsampling": True,
    }
    assert resolve_dali_settings(dali, CPU).decoder == {}, "only decoders on a GPU take these"
    fast = Dali(jpeg_fast_idct=True)
    assert (resolve_dali_settings(fast, CPU).decoder, resolve_dali_settings(fast, GPU).decoder) == (
        {"use_fast_idct": True},
        {"hw_decoder_load": 0.9},
    )


def test_cache_decodes_whole_images() -> None:
    found = resolve_dali_settings(Dali(cache_size=100, cache_threshold=5), GPU)
    assert found.caches
    assert not found.decode_window
    assert found.decoder == {
        "hw_decoder_load": 0.9,
        "cache_size": 100,
        "cache_type": "largest",
        "cache_threshold": 5,
    }
    assert not resolve_dali_settings(Dali(), GPU).caches
    with pytest.raises(ValidationError, match="the cache needs whole images; set decode: whole"):
        Dali(cache_size=1, decode="window")


def test_threads_run_on_cores_near_gpu() -> None:
    own = os.sched_getaffinity(0)
    near = frozenset(sorted(own)[:1])
    beside = Runtime(device="gpu", device_id=0, card=_Card(near | {100_000}))  # type: ignore[arg-type]
    settings = resolve_dali_settings(Dali(), beside)
    assert settings.cores == (near if near != own else None)
    assert resolve_dali_settings(Dali(affinity=False), beside).cores is None
    seen = []
    with DaliSettings(cores=near).on_cores():
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [set(near)]
    assert os.sched_getaffinity(0) == own


def test_unknown_or_foreign_cores_are_ignored() -> None:
    for cores in (frozenset(), frozenset({100_000}), frozenset(os.sched_getaffinity(0))):
        beside = Runtime(device="gpu", device_id=0, card=_Card(cores))  # type: ignore[arg-type]
        assert resolve_dali_settings(Dali(), beside).cores is None

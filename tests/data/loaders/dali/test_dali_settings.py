"""DALI's settings: those of the config, and those that ``auto`` is resolved to."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ppcls.data.loaders.dali.settings import DaliSettings, resolve_dali_settings, share_turns
from ppcls.data.loaders.section import Dali
from ppcls.runtime.hardware import Card
from ppcls.runtime.start import Runtime

CPU = Runtime(cores=3)
GPU = Runtime(device="gpu", device_id=1, cores=3)


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
    assert resolve_dali_settings(Dali(num_threads=16), GPU, batch_bytes).per_pipeline().prefetch == 2


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


def gpu_with(cpus: set[int], cores: int | None = None) -> Runtime:
    large = Card("GPU-1", 80_000)
    return Runtime(device="gpu", device_id=0, cores=cores or len(cpus), cpus=frozenset(cpus), card=large)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 5, 8, 11, 12, 16, 64])
def test_threads_leave_a_core_to_the_training_thread(cores: int) -> None:
    cpus = set(range(100, 100 + cores))
    settings = resolve_dali_settings(Dali(), gpu_with(cpus))
    kept = 1 if cores >= 4 else 0
    assert settings.threads == cores - kept
    assert settings.cores == frozenset(range(100, 100 + cores - kept))
    assert settings.decode_on_cpu == (cores >= 12)
    assert settings.pipelines == (2 if cores >= 12 else 1)
    assert not any(settings.turns)
    small = replace(gpu_with(cpus), card=Card("GPU-1", 24_000))
    assert resolve_dali_settings(Dali(), small).pipelines == 1
    assert resolve_dali_settings(Dali(), Runtime(cores=cores)).threads == cores, "all on a CPU"


@pytest.mark.parametrize("cores", [1, 4, 5, 6, 8, 11, 12, 64])
def test_both_devices_decode_in_training_with_some_cores(cores: int) -> None:
    runtime = gpu_with(set(range(cores)))
    settings = resolve_dali_settings(Dali(), runtime, training=True)
    assert any(settings.turns) == (6 <= cores < 12)
    if any(settings.turns):
        explicit = Dali(decode_on="both", gpu_share=3 / 5)
        assert settings == resolve_dali_settings(explicit, runtime, training=True)
        assert settings == resolve_dali_settings(Dali(decode_on="both"), runtime, training=True)
    else:
        assert settings == resolve_dali_settings(Dali(), runtime)
    small = replace(runtime, card=Card("GPU-1", 24_000))
    for device in (small, replace(runtime, card=None), Runtime(cores=cores)):
        assert not any(resolve_dali_settings(Dali(), device, training=True).turns)
    for chosen in (Dali(decode_on="gpu"), Dali(decode_on="cpu"), Dali(cache_size=100)):
        assert not any(resolve_dali_settings(chosen, runtime, training=True).turns)


@pytest.mark.parametrize(
    ("cores", "training", "device"),
    [(4, True, "gpu"), (8, True, "both"), (8, False, "gpu"), (12, True, "cpu"), (12, False, "cpu")],
)
def test_decoding_names_the_device(cores: int, training: bool, device: str) -> None:
    """Several pipelines that all decode on the CPU are no decoding on both devices."""
    settings = resolve_dali_settings(Dali(), gpu_with(set(range(cores))), training=training)
    assert settings.decoding == device
    assert resolve_dali_settings(Dali(), Runtime(cores=cores), training=training).decoding == "cpu"


@pytest.mark.parametrize(("threads", "share"), [(1, 3 / 5), (11, 3 / 5), (12, 1 / 6), (64, 1 / 6)])
def test_share_of_the_gpu_depends_on_the_threads(threads: int, share: float) -> None:
    settings = resolve_dali_settings(Dali(decode_on="both", num_threads=threads), gpu_with(set(range(64))))
    assert settings.turns == share_turns(share)


def test_threads_of_the_config_are_used_as_they_are() -> None:
    settings = resolve_dali_settings(Dali(num_threads=8), gpu_with(set(range(8))))
    assert (settings.threads, settings.cores) == (8, frozenset(range(7)))
    assert resolve_dali_settings(Dali(affinity=False), gpu_with(set(range(8)))).cores is None


def test_threads_are_at_most_the_cores_near_the_gpu_and_the_quota() -> None:
    assert resolve_dali_settings(Dali(), gpu_with(set(range(8)), cores=16)).threads == 7
    assert resolve_dali_settings(Dali(), gpu_with(set(range(64)), cores=16)).threads == 15
    assert resolve_dali_settings(Dali(), gpu_with(set(), cores=16)).threads == 15
    assert resolve_dali_settings(Dali(), gpu_with(set(), cores=16)).cores is None


def test_new_threads_run_on_the_cores_of_the_settings() -> None:
    own = os.sched_getaffinity(0)
    near = frozenset(sorted(own)[:1])
    seen = []
    with DaliSettings(cores=near).on_cores():
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [set(near)]
    assert os.sched_getaffinity(0) == own
    assert resolve_dali_settings(Dali(), gpu_with(set(own) | {100_000})).cores is not None


@pytest.mark.parametrize(
    ("share", "turns"),
    [
        (0.5, (False, True)),
        (1 / 3, (False, False, True)),
        (0.66, (False, True, True)),
        (0.4, (False, False, True, False, True)),
        (0.01, (False, False, False, False, False, True)),
        (0.99, (False, True, True, True, True, True)),
    ],
)
def test_share_of_the_gpu_becomes_turns(share: float, turns: tuple[bool, ...]) -> None:
    assert share_turns(share) == turns


@given(share=st.floats(0.0, 1.0))
def test_turns_have_nearly_the_share_of_the_gpu(share: float) -> None:
    turns = share_turns(share)
    assert len(turns) <= 6
    assert set(turns) == {False, True}
    assert abs(sum(turns) / len(turns) - min(max(share, 1 / 6), 5 / 6)) <= 1 / 12


def test_pipelines_that_take_turns_share_the_threads_of_the_cpu() -> None:
    both = Dali(decode_on="both", gpu_share=0.4, jpeg_fast_idct=True)
    settings = resolve_dali_settings(both, gpu_with(set(range(16))))
    assert (settings.pipelines, settings.prefetch, settings.decodes_on_gpu) == (5, 10, True)
    each = [settings.per_pipeline(number) for number in range(5)]
    assert [one.decodes_on_gpu for one in each] == [False, False, True, False, True]
    assert [one.threads for one in each] == [5, 5, 4, 5, 4]
    assert [one.pipelines for one in each] == [1] * 5
    assert {one.prefetch for one in each} == {2}
    assert [dict(one.decoder) for one in settings.per_device()] == [
        {"use_fast_idct": True},
        {"hw_decoder_load": 1.0},
    ]
    assert resolve_dali_settings(both, CPU).turns == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu_share": 0.5}, "gpu_share is only used with decode_on: both"),
        ({"gpu_share": 0.5, "decode_on": "gpu"}, "gpu_share is only used with decode_on: both"),
        ({"cache_size": 5, "decode_on": "both"}, "only the GPU's decoder has a cache"),
    ],
)
def test_settings_of_both_devices_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Dali.model_validate(settings)

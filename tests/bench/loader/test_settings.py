"""Settings that a sweep tries."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ppcls.bench.loader.settings import BACKENDS, LoaderSetting, SweepRange, list_settings
from ppcls.bench.loader.workload import CHAINS

ALL = SweepRange(BACKENDS, CHAINS, ("workers", "prefetch", "decoder"), threads=(1, 2), workers=(0, 1, 2))


def test_list_settings_on_a_cpu_has_every_backend_and_axis() -> None:
    settings = list_settings(ALL, on_gpu=False, random_crop=True, bare=CHAINS)
    assert len(set(settings)) == len(settings)
    assert Counter((each.varied, each.backend) for each in settings) == {
        ("workers", "read only"): 2,
        ("workers", "bare DALI"): 2,
        ("workers", "paddle.io"): 6,
        ("workers", "DALI CPU"): 4,
        ("prefetch", "DALI CPU"): 4,
        ("decoder", "DALI CPU"): 3,
    }
    assert {each.prefetch for each in settings if each.varied == "prefetch"} == {1, 2, 4, 8}
    assert all(each.workers == 2 for each in settings if each.varied != "workers")


def test_list_settings_on_a_gpu_tries_both_devices() -> None:
    settings = list_settings(ALL, on_gpu=True, random_crop=False, bare=())
    counts = Counter(each.backend for each in settings if each.varied == "workers")
    assert (counts["DALI CPU"], counts["bare DALI"]) == (4, 0)
    assert counts["DALI GPU"] == 2, "reading has no device"
    decoders = {each.decoder for each in settings if each.varied == "decoder"}
    assert decoders == {"as configured", "on the CPU", "hardware 0.65", "hardware 0.8", "hardware 1.0"}


def test_list_settings_obeys_the_range() -> None:
    few = SweepRange(("DALI CPU",), ("config",), ("workers",), (2,), (0,))
    prefetch = replace(few, varied=("prefetch",), prefetch=(3,))
    found = [
        list_settings(wanted, on_gpu=False, random_crop=True, bare=CHAINS)
        for wanted in (few, prefetch, replace(prefetch, chains=("read",)))
    ]
    base = LoaderSetting("DALI CPU", "config", 2)
    assert found == [[base], [replace(base, prefetch=3, varied="prefetch")], []]


def test_setting_describe_and_labels() -> None:
    setting = LoaderSetting("DALI GPU", "config", 1, 4, "whole", {"decode": "whole"}, varied="decoder")
    assert setting.describe() == "DALI GPU, 1 thread, prefetch 4, decoder whole"
    assert (setting.labels()["decoder"], setting.labels()["prefetch"]) == ("whole", 4)
    assert LoaderSetting("paddle.io", "read", 2).describe() == "paddle.io, 2 workers"
    assert LoaderSetting("paddle.io", "read", 2).labels() == {
        "varied": "workers",
        "chain": "read",
        "backend": "paddle.io",
        "workers": 2,
    }


def test_skipped_batches_cover_the_prefetched_ones() -> None:
    assert LoaderSetting("DALI CPU", "config", 2, 2).skipped_batches == 3
    assert LoaderSetting("DALI CPU", "config", 2).skipped_batches == 5
    assert LoaderSetting("paddle.io", "config", 0).skipped_batches == 1
    assert LoaderSetting("paddle.io", "config", 64).skipped_batches == 9

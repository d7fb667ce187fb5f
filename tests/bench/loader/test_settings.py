"""Settings that a sweep tries."""

from __future__ import annotations

from collections import Counter

from ppcls.bench.loader.settings import LoaderSetting, list_backends, list_variants


def test_list_backends_varies_threads_and_workers() -> None:
    for on_gpu, devices in ((False, {"DALI CPU": 2}), (True, {"DALI CPU": 2, "DALI GPU": 2})):
        settings = list(list_backends((1, 2), (0, 1, 2), on_gpu=on_gpu))
        assert Counter(each.backend for each in settings) == {"bare DALI": 1, "paddle.io": 3, **devices}
        assert settings[0] == LoaderSetting("bare DALI", 2)


def test_list_variants_change_one_thing() -> None:
    base = LoaderSetting("DALI CPU", 2)
    on_cpu = list(list_variants(base, random_crop=True))
    assert [each.prefetch for each in on_cpu] == [1, 2, 4, 8, None, None]
    assert [each.dali for each in on_cpu[4:]] == [{"decode": "window"}, {"decode": "whole"}]
    assert {(each.backend, each.workers) for each in on_cpu} == {("DALI CPU", 2)}
    on_gpu = list(list_variants(LoaderSetting("DALI GPU", 2), random_crop=False))
    decoders = {each.decoder for each in on_gpu if each.prefetch is None}
    assert decoders == {"on the CPU", "hardware 0.65", "hardware 0.8", "hardware 1.0"}


def test_setting_describes_its_backend_and_values() -> None:
    setting = LoaderSetting("DALI GPU", 1, 4, "whole", {"decode": "whole"})
    assert setting.describe() == "DALI GPU, 1 thread, prefetch 4, decoder whole"
    assert setting.labels() == {"backend": "DALI GPU", "workers": 1, "prefetch": 4, "decoder": "whole"}
    assert LoaderSetting("paddle.io", 2).describe() == "paddle.io, 2 workers"
    assert LoaderSetting("paddle.io", 2).labels() == {"backend": "paddle.io", "workers": 2}


def test_skipped_batches_cover_the_prefetched_ones() -> None:
    assert LoaderSetting("DALI CPU", 2, 2).skipped_batches == 3
    assert LoaderSetting("DALI CPU", 2).skipped_batches == 5
    assert LoaderSetting("paddle.io", 0).skipped_batches == 1
    assert LoaderSetting("paddle.io", 64).skipped_batches == 33

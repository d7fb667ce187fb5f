"""Who takes part, and how long that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ppcls.bench.loader.contender import (
    BACKENDS,
    LEAST,
    VARIED,
    Contender,
    Wanted,
    counts,
    line_up,
    not_counted,
    seconds_a_run,
)
from ppcls.bench.loader.subject import CHAINS

ALL = Wanted(BACKENDS, CHAINS, VARIED, threads=(1, 2), workers=(0, 1, 2))


@pytest.mark.parametrize(
    ("cores", "expected"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))]
)
def test_counts_double_up_to_the_cores(cores: int, expected: tuple[int, ...]) -> None:
    assert counts(cores) == expected


def test_everything_on_a_cpu() -> None:
    found = line_up(ALL, on_gpu=False, windowed=True, bare=CHAINS)
    assert len(set(found)) == len(found)
    assert Counter((each.varied, each.backend) for each in found) == {
        ("workers", "read only"): 2,
        ("workers", "bare DALI"): 4,
        ("workers", "paddle.io"): 12,
        ("workers", "DALI CPU"): 8,
        ("prefetch", "DALI CPU"): 4,
        ("decoder", "DALI CPU"): 3,
    }
    assert {each.prefetch for each in found if each.varied == "prefetch"} == {1, 2, 4, 8}
    assert all(each.workers == 2 for each in found if each.varied != "workers")


def test_on_a_gpu_both_devices_are_tried() -> None:
    found = line_up(ALL, on_gpu=True, windowed=False, bare=())
    by_backend = Counter(each.backend for each in found if each.varied == "workers")
    assert by_backend["DALI CPU"] == 8
    assert by_backend["DALI GPU"] == 6, "reading has no device"
    assert by_backend["bare DALI"] == 0
    decoders = {each.decoder for each in found if each.varied == "decoder"}
    assert decoders == {"as configured", "on the CPU", "hardware 0.65", "hardware 0.8", "hardware 1.0"}


def test_a_cold_cache_doubles_all() -> None:
    warm = line_up(ALL, on_gpu=False, windowed=True, bare=CHAINS)
    both = line_up(replace(ALL, cold=True), on_gpu=False, windowed=True, bare=CHAINS)
    assert both == [*warm, *(replace(each, cold=True) for each in warm)]


def test_what_is_swept_is_chosen() -> None:
    few = Wanted(("DALI CPU",), ("config",), ("workers",), (2,), (0,))
    assert line_up(few, on_gpu=False, windowed=True, bare=CHAINS) == [Contender("DALI CPU", "config", 2)]
    only_prefetch = replace(few, varied=("prefetch",), prefetch=(3,))
    (found,) = line_up(only_prefetch, on_gpu=False, windowed=True, bare=CHAINS)
    assert (found.prefetch, found.varied) == (3, "prefetch")
    assert line_up(replace(only_prefetch, chains=("read",)), on_gpu=False, windowed=True, bare=CHAINS) == []


def test_names() -> None:
    contender = Contender("DALI GPU", "config", 1, 4, "whole", {"decode": "whole"}, varied="decoder")
    assert contender.describe() == "DALI GPU, 1 thread, prefetch 4, decoder whole"
    assert (contender.labels()["decoder"], contender.labels()["prefetch"]) == ("whole", 4)
    assert Contender("paddle.io", "read", 2).describe() == "paddle.io, 2 workers"
    assert Contender("paddle.io", "read", 2, cold=True).labels() == {
        "varied": "workers",
        "cache": "cold",
        "chain": "read",
        "backend": "paddle.io",
        "workers": 2,
    }


def test_as_many_batches_do_not_count_as_may_be_ready() -> None:
    assert not_counted(Contender("DALI CPU", "config", 2, 2)) == 3
    assert not_counted(Contender("DALI CPU", "config", 2)) == 5
    assert not_counted(Contender("paddle.io", "config", 0)) == 1
    assert not_counted(Contender("paddle.io", "config", 64)) == 9


def test_a_run_takes_as_long_as_its_batches() -> None:
    slow = seconds_a_run(Contender("paddle.io", "config", 0), 100, 2.0, 0.01, 4)  # a batch a second
    assert slow == pytest.approx(0.7 + 1 + LEAST)
    fast = seconds_a_run(Contender("paddle.io", "config", 4), 100, 2.0, 0.001, 4)  # 40 a second
    assert fast == pytest.approx(0.7 + 9 / 40 + 2)

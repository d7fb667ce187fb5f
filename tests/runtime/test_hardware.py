"""CPU cores, network interfaces, and cards numbered as in CUDA; the driver's library is faked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.errors import UserError
from ppcls.runtime import hardware
from ppcls.runtime.hardware import (
    Card,
    CardLoad,
    Driver,
    InstalledCard,
    divide_cores,
    find_card,
    interface_of,
    physical_cores,
    read_driver,
    read_machine_id,
    usable_cores,
)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("usable", "cores"), [(8, 4), (3, 3)])
def test_hyperthreads_share_physical_cores(monkeypatch: pytest.MonkeyPatch, usable: int, cores: int) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: usable)
    monkeypatch.setattr(hardware, "_first_sibling", lambda core: core % 4)
    assert physical_cores() == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu.max": ""}, 8),
        ({"cpu.max": "400000 0\n"}, 8),
        ({"cpu.max": "some thing\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "30000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 8),
    ],
    ids=str,
)
def test_usable_cores_respect_the_cgroup_quota(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores


def test_usable_cores_are_within_the_affinity() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@given(
    near=st.lists(st.sampled_from([set(), {*range(8)}, {*range(8, 16)}, {*range(16)}, {99}]), min_size=1),
    usable=st.sets(st.integers(0, 15), min_size=1),
)
def test_divide_cores_gives_each_core_to_at_most_one_process(near: list[set[int]], usable: set[int]) -> None:
    shares = divide_cores([frozenset(cores) for cores in near], frozenset(usable))
    assert len(shares) == len(near)
    assert sum(map(len, shares)) == len(frozenset().union(*shares))
    assert frozenset().union(*shares) <= usable
    if len(near) <= len(usable) and all(cores == near[0] for cores in near):
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_divide_cores_uses_cores_near_each_gpu() -> None:
    one, two = frozenset(range(8)), frozenset(range(8, 16))
    usable = one | two
    assert divide_cores([one], usable) == [one]
    assert divide_cores([frozenset()], usable) == [usable], "unknown"
    shares = divide_cores([one, two, one, two], usable)
    assert [len(share) for share in shares] == [4] * 4
    assert [share <= near for share, near in zip(shares, [one, two, one, two], strict=True)] == [True] * 4
    overlapping = divide_cores([one, usable], usable)
    assert [len(share) for share in overlapping] == [8, 8]


@pytest.mark.parametrize(
    ("used", "cores"),
    [([0.0] * 8, 8), ([100.0] * 8, 1), ([100.0, 100.0, 60.0, *[0.0] * 5], 5), ([0.0, 100.0], 1)],
)
def test_idle_cores_are_those_that_other_programs_leave(
    eight_cores: None, monkeypatch: pytest.MonkeyPatch, used: list[float], cores: int
) -> None:
    def measure(seconds: float, *, percpu: bool) -> list[float] | float:
        assert seconds == 0.5
        return used if percpu else sum(used) / len(used)

    monkeypatch.setattr(psutil, "cpu_percent", measure)
    monkeypatch.setattr(hardware, "usable_cores", lambda: 8)
    assert hardware.idle_cores(0.5) == cores
    monkeypatch.setattr(hardware, "usable_cores", lambda: 2)
    assert hardware.idle_cores(0.5) == min(cores, 2)


def test_machine_id_is_constant() -> None:
    assert read_machine_id() == read_machine_id() != ""


def test_interface_of_finds_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None, "reserved for documentation by RFC 5737"
    assert interface_of("") is None


GIB = 1 << 30


@dataclass(frozen=True)
class FakeCard:
    uuid: str
    name: str = "NVIDIA A"
    total: int = 24 * GIB
    free: int = 23 * GIB


PLAIN = [FakeCard(f"GPU-{letter}{letter}-1", total=(8 + place) * GIB) for place, letter in enumerate("abcd")]
PART = FakeCard("MIG-part", total=5 * GIB)


def fake_driver(monkeypatch: pytest.MonkeyPatch, cards: list[FakeCard]) -> None:
    def by_uuid(uuid: str) -> FakeCard:
        for each in [*cards, PART]:
            if each.uuid == uuid:
                return each
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    for name, function in {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda index: cards[index],
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUUID": lambda card: card.uuid,
        "nvmlDeviceGetName": lambda card: card.name,
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=card.total, free=card.free),
    }.items():
        monkeypatch.setattr(pynvml, name, function)


@pytest.mark.parametrize(
    ("number", "visible", "place"),
    [
        (0, None, 0),
        (3, None, 3),
        (4, None, None),
        (0, "2", 2),
        (1, "2,0", 0),
        (1, " 2 , 0 ", 0),
        (2, "2,0", None),
        (0, "", None),
        (0, "-1", None),
        (0, "3,-1,1", 3),
        (1, "3,-1,1", None),  # CUDA stops at the first invalid one
        (0, "9", None),
        (0, "NoDevFiles", None),
        (0, "GPU-cc-1", 2),
        (0, "GPU-c", 2),  # a prefix is enough
        (1, "GPU-d,GPU-a", 0),
        (0, "GPU-x", None),
        (0, "GPU-", None),  # ambiguous
        (0, "MIG-gone", None),
    ],
)
def test_find_card_numbers_cards_as_cuda(
    monkeypatch: pytest.MonkeyPatch, number: int, visible: str | None, place: int | None
) -> None:
    fake_driver(monkeypatch, PLAIN)
    expected = None if place is None else Card(PLAIN[place].uuid, (8 + place) * 1024)
    assert find_card(number, visible, None) == expected


def test_find_card_partition_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, PLAIN)
    assert find_card(0, "MIG-part", None) == Card("MIG-part", 5 * 1024)


def test_card_free_is_in_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, PLAIN)
    card = find_card(1, None, None)
    assert card is not None
    assert card.free() == 23 * 1024


def test_near_cores_are_those_of_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, PLAIN)
    monkeypatch.setattr(os, "cpu_count", lambda: 130)
    masks = {3: [1 << 63 | 1, 0b110, 1 << 1]}  # by the number of words of 64 cores
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", lambda _, words: masks[words])
    card = find_card(0, None, None)
    assert card is not None
    assert card.near_cores() == {0, 63, 65, 66, 129}

    def fail(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", fail)
    assert card.near_cores() == frozenset()


def test_find_card_different_models_need_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [FakeCard("GPU-a", "NVIDIA Small", 4 * GIB), FakeCard("GPU-b", "NVIDIA Large")]
    fake_driver(monkeypatch, cards)
    for visible in (None, "1"):
        with pytest.raises(UserError) as caught:
            find_card(0, visible, None)
        assert str(caught.value).startswith("GPU 0 could be any of NVIDIA Large, NVIDIA Small, so its memory")
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(caught.value)
    assert find_card(0, "1", "PCI_BUS_ID") == Card("GPU-b", 24 * 1024)
    assert find_card(0, "GPU-b", None) == Card("GPU-b", 24 * 1024)


def test_find_card_without_driver_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert find_card(0, None, None) is None


@pytest.mark.gpu
def test_driver_and_paddle_report_the_same_card() -> None:
    import paddle

    card = find_card(0, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
    assert card is not None
    usable = paddle.device.cuda.get_device_properties(0).total_memory >> 20
    assert 0.9 * card.total <= usable <= card.total
    assert 0 < card.free() < card.total


def test_card_load_is_none_if_the_driver_does_not_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, PLAIN)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetMemoryInfo", lambda card: SimpleNamespace(used=3 << 30), raising=True
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda card: SimpleNamespace(gpu=73))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetJpgUtilization", lambda card: [40, 1000])
    card = Card(PLAIN[0].uuid, 8 << 10)
    assert card.load() == CardLoad(0.73, 0.4, 3072)

    def unknown(card: FakeCard) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetJpgUtilization"):
        monkeypatch.setattr(pynvml, name, unknown)
    assert card.load() == CardLoad(None, None, 3072), "as for a partition of a card"


def test_read_driver_returns_versions_and_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, PLAIN[:1])
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "550.54")
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: 12040)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda handle: (8, 6))
    card = InstalledCard("NVIDIA A", (8, 6), 8 << 10, 23 << 10)
    assert read_driver() == Driver("550.54", "12.4", (card,))


def test_read_driver_without_a_driver_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert read_driver() is None

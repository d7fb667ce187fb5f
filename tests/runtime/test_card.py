"""Finding a card as CUDA counts; the driver's library is played where this machine has no such cards."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pynvml
import pytest

from ppcls.errors import UserError
from ppcls.runtime.hardware import Card, Load, find_card

GIB = 1 << 30


@dataclass(frozen=True)
class Fake:
    uuid: str
    name: str = "NVIDIA A"
    total: int = 24 * GIB
    free: int = 23 * GIB


PLAIN = [Fake(f"GPU-{letter}{letter}-1", total=(8 + place) * GIB) for place, letter in enumerate("abcd")]
PART = Fake("MIG-part", total=5 * GIB)


def play(monkeypatch: pytest.MonkeyPatch, cards: list[Fake]) -> None:
    def by_uuid(uuid: str) -> Fake:
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
        (1, "3,-1,1", None),  # CUDA stops at the first that is none
        (0, "9", None),
        (0, "NoDevFiles", None),
        (0, "GPU-cc-1", 2),
        (0, "GPU-c", 2),  # a beginning will do
        (1, "GPU-d,GPU-a", 0),
        (0, "GPU-x", None),
        (0, "GPU-", None),  # more than one
        (0, "MIG-gone", None),
    ],
)
def test_a_card_is_found_as_cuda_counts(
    monkeypatch: pytest.MonkeyPatch, number: int, visible: str | None, place: int | None
) -> None:
    play(monkeypatch, PLAIN)
    expected = None if place is None else Card(PLAIN[place].uuid, (8 + place) * 1024)
    assert find_card(number, visible, None) == expected


def test_a_part_of_a_card_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, PLAIN)
    assert find_card(0, "MIG-part", None) == Card("MIG-part", 5 * 1024)


def test_a_card_tells_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, PLAIN)
    card = find_card(1, None, None)
    assert card is not None
    assert card.free() == 23 * 1024


def test_different_cards_need_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Fake("GPU-a", "NVIDIA Small", 4 * GIB), Fake("GPU-b", "NVIDIA Large")]
    play(monkeypatch, cards)
    for visible in (None, "1"):
        with pytest.raises(UserError) as caught:
            find_card(0, visible, None)
        assert str(caught.value) == (
            "GPU 0 could be any of NVIDIA Large, NVIDIA Small, so its memory is not known; set the "
            "environment variable CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a UUID "
            "(nvidia-smi -L)"
        )
    assert find_card(0, "1", "PCI_BUS_ID") == Card("GPU-b", 24 * 1024)
    assert find_card(0, "GPU-b", None) == Card("GPU-b", 24 * 1024)


def test_no_driver_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert find_card(0, None, None) is None


@pytest.mark.gpu
def test_the_driver_and_paddle_speak_of_the_same_card() -> None:
    import os

    import paddle

    card = find_card(0, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
    assert card is not None
    usable = paddle.device.cuda.get_device_properties(0).total_memory >> 20
    assert 0.9 * card.total <= usable <= card.total
    assert 0 < card.free() < card.total


def test_what_a_card_does_now(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, PLAIN)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetMemoryInfo", lambda card: SimpleNamespace(used=3 << 30), raising=True
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda card: SimpleNamespace(gpu=73))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetJpgUtilization", lambda card: [40, 1000])
    card = Card(PLAIN[0].uuid, 8 << 10)
    assert card.load() == Load(0.73, 0.4, 3072)

    def unknown(card: Fake) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetJpgUtilization"):
        monkeypatch.setattr(pynvml, name, unknown)
    assert card.load() == Load(None, None, 3072), "as of a part of a card"

"""Peak rates of cards, and the share of them that training uses."""

from __future__ import annotations

import pytest

from ppcls.bench.train.peak_flops import PEAKS, teraflops, utilization


@pytest.mark.parametrize(
    ("card", "format", "rate"),
    [
        ("NVIDIA H200", "float16", 989.5),
        ("NVIDIA H200", "TF32", 494.5),
        ("NVIDIA H200", "float32", 67),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "TF32", 156),
        ("Tesla V100-SXM2-32GB", "float16", 125),
        ("GeForce RTX 2080 Ti", "float16", 53.8),
    ],
)
def test_teraflops_of_known_cards(card: str, format: str, rate: float) -> None:
    assert teraflops(card, format) == rate


@pytest.mark.parametrize(
    ("card", "format", "reason"),
    [
        ("Tesla V100-SXM2-32GB", "TF32", "Tesla V100-SXM2-32GB has no TF32 units"),
        ("Tesla T4", "bfloat16", "Tesla T4 has no bfloat16 units"),
        ("NVIDIA H200 MIG 1g.18gb", "float16", "the peak rates of 'NVIDIA H200 MIG 1g.18gb' are unknown"),
        ("NVIDIA L40", "float16", "the peak rates of 'NVIDIA L40' are unknown"),
    ],
)
def test_teraflops_unknown_rate_has_a_reason(card: str, format: str, reason: str) -> None:
    assert str(teraflops(card, format)).startswith(reason)


def test_peaks_rise_with_fewer_bits() -> None:
    for peak in PEAKS:
        rates = [each for each in (peak.float32, peak.tf32, peak.float16) if each is not None]
        assert rates == sorted(rates), peak.name
        assert peak.bfloat16 in (None, peak.float16)
        assert (peak.tf32 is None) == (peak.bfloat16 is None), "both came with Ampere"


def test_teraflops_match_the_whole_name() -> None:
    assert teraflops("NVIDIA L4", "float16") != teraflops("NVIDIA L40S", "float16")
    assert teraflops("NVIDIA A10", "float16") != teraflops("NVIDIA A100-SXM4-40GB", "float16")


def test_utilization_is_a_share_of_the_peak() -> None:
    # ResNet-50: 4.1e9 multiply-adds forward, so 24.6e9 FLOPs per training image
    assert utilization(5000.0, 4_100_000_000, 989.5) == pytest.approx(5000 * 24.6e9 / 989.5e12)

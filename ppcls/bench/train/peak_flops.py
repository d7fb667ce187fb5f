"""The most that a card could compute, and the share of it that training uses (MFU).

Model FLOPs utilization is Chowdhery et al. 2022 (PaLM), appendix B: the FLOPs that the model itself asks for,
over those that the card could have done meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Format = Literal["float32", "TF32", "float16", "bfloat16"]

# A multiplication and its addition are two operations; backward computes a gradient for each operand of
# forward's products, so a training step has three times forward's.
_TRAINING = 2 * 3


@dataclass(frozen=True)
class Peak:
    """One kind of card, as NVML and CUDA name it.

    Attributes:
        name: Pattern of the whole name; a part of a card (MIG) has another one.
        source: Where NVIDIA says so.
        float32: 10^12 FLOPs a second on ordinary cores.
        tf32: On tensor cores, dense, as is all that follows; None where the card has none.
        float16: Summed in float32.
        bfloat16: Summed in float32; None where the card has none.
    """

    name: str
    source: str
    float32: float
    tf32: float | None
    float16: float
    bfloat16: float | None


_H200 = "NVIDIA H200 Tensor Core GPU datasheet, half of its sparse rates"
_H100_PCIE = "NVIDIA H100 PCIe GPU product brief, half of its sparse rates"
_ADA = "NVIDIA Ada GPU Architecture (white paper), appendix A"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture (white paper), table of peak rates"
_AMPERE = "NVIDIA A100 Tensor Core GPU datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture (white paper), appendix A"
_TURING = "NVIDIA Turing GPU Architecture (white paper), appendix A, reference boards"
_VOLTA = "NVIDIA Tesla V100 GPU datasheet"

PEAKS = (
    Peak("NVIDIA H200", _H200, 67, 494.5, 989.5, 989.5),
    Peak("NVIDIA H100 80GB HBM3", _HOPPER, 66.9, 494.7, 989.4, 989.4),
    Peak("NVIDIA H100 PCIe", _H100_PCIE, 51, 378, 756, 756),
    Peak("NVIDIA A100-(SXM4|PCIE|PCIe)-(40|80)GB|NVIDIA A100 80GB PCIe", _AMPERE, 19.5, 156, 312, 312),
    Peak("NVIDIA A30", "NVIDIA A30 Tensor Core GPU datasheet", 10.3, 82, 165, 165),
    Peak("NVIDIA A40", "NVIDIA A40 GPU datasheet", 37.4, 74.8, 149.7, 149.7),
    Peak("NVIDIA A10", "NVIDIA A10 Tensor Core GPU datasheet", 31.2, 62.5, 125, 125),
    Peak("NVIDIA L40S", "NVIDIA L40S GPU datasheet", 91.6, 183, 362, 362),
    Peak("NVIDIA L4", "NVIDIA L4 Tensor Core GPU datasheet, half of its sparse rates", 30.3, 60, 121, 121),
    Peak("(NVIDIA )?Tesla V100-SXM2-(16|32)GB", _VOLTA, 15.7, None, 125, None),
    Peak("(NVIDIA )?Tesla V100-PCIE-(16|32)GB", _VOLTA, 14, None, 112, None),
    Peak("(NVIDIA )?Tesla T4", "NVIDIA T4 Tensor Core GPU datasheet", 8.1, None, 65, None),
    Peak("NVIDIA GeForce RTX 4090", _ADA, 82.6, 82.6, 165.2, 165.2),
    Peak("NVIDIA GeForce RTX 3090", _GA102, 35.6, 35.6, 71, 71),
    Peak("(NVIDIA )?GeForce RTX 2080 Ti", _TURING, 13.4, None, 53.8, None),
)  # fmt: skip


def find_peak(card: str) -> Peak | None:
    """Returns the peak rates of a card; None where they are not known."""
    return next((each for each in PEAKS if re.fullmatch(each.name, card)), None)


def teraflops(card: str, format: Format) -> float | str:
    """Returns a card's peak rate in 10^12 FLOPs a second, or why there is none."""
    peak = find_peak(card)
    if peak is None:
        return f"the peak rates of '{card}' are not known (ppcls/bench/train/peak_flops.py)"
    rate: float | None = getattr(peak, format.lower())
    return f"{card} has no {format} units" if rate is None else rate


def utilization(images_per_second: float, multiply_adds: int, teraflops: float) -> float:
    """Returns the share of a card's peak that training uses, 0..1.

    Args:
        images_per_second: Of one card.
        multiply_adds: Of one image's forward pass; see `ppcls.arch.cost.Cost`.
        teraflops: Peak rate of the card.
    """
    return images_per_second * multiply_adds * _TRAINING / (teraflops * 1e12)

"""Peak compute rates of GPUs, and the share of them that training uses (MFU).

Model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B) is the number of FLOPs that the model needs,
divided by the number that the card could have computed in the same time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Format = Literal["float32", "TF32", "float16", "bfloat16"]

# A multiply-add is two operations. The backward pass computes a gradient for both operands of each product of
# the forward pass, so a training step needs three times the forward pass.
_TRAINING = 2 * 3


@dataclass(frozen=True)
class CardPeak:
    """Peak rates of one kind of card, in 10^12 dense FLOPs per second.

    Attributes:
        name: Regular expression for the card's whole name in NVML and CUDA; a part of a card (MIG) does not
            match.
        source: NVIDIA document with the rates.
        float32: Rate of ordinary cores.
        tf32: Rate of tensor cores; None if the card has no TF32.
        float16: Rate of tensor cores that accumulate in float32.
        bfloat16: The same for bfloat16; None if the card has none.
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
_A100 = "NVIDIA A100-(SXM4|PCIE|PCIe)-(40|80)GB|NVIDIA A100 80GB PCIe"
_AMPERE = "NVIDIA A100 Tensor Core GPU datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture (white paper), appendix A"
_TURING = "NVIDIA Turing GPU Architecture (white paper), appendix A, reference boards"
_L4 = "NVIDIA L4 Tensor Core GPU datasheet, half of its sparse rates"
_VOLTA = "NVIDIA Tesla V100 GPU datasheet"

PEAKS = (
    CardPeak("NVIDIA H200", _H200, 67, 494.5, 989.5, 989.5),
    CardPeak("NVIDIA H100 80GB HBM3", _HOPPER, 66.9, 494.7, 989.4, 989.4),
    CardPeak("NVIDIA H100 PCIe", _H100_PCIE, 51, 378, 756, 756),
    CardPeak(_A100, _AMPERE, 19.5, 156, 312, 312),
    CardPeak("NVIDIA A30", "NVIDIA A30 Tensor Core GPU datasheet", 10.3, 82, 165, 165),
    CardPeak("NVIDIA A40", "NVIDIA A40 GPU datasheet", 37.4, 74.8, 149.7, 149.7),
    CardPeak("NVIDIA A10", "NVIDIA A10 Tensor Core GPU datasheet", 31.2, 62.5, 125, 125),
    CardPeak("NVIDIA L40S", "NVIDIA L40S GPU datasheet", 91.6, 183, 362, 362),
    CardPeak("NVIDIA L4", _L4, 30.3, 60, 121, 121),
    CardPeak("(NVIDIA )?Tesla V100-SXM2-(16|32)GB", _VOLTA, 15.7, None, 125, None),
    CardPeak("(NVIDIA )?Tesla V100-PCIE-(16|32)GB", _VOLTA, 14, None, 112, None),
    CardPeak("(NVIDIA )?Tesla T4", "NVIDIA T4 Tensor Core GPU datasheet", 8.1, None, 65, None),
    CardPeak("NVIDIA GeForce RTX 4090", _ADA, 82.6, 82.6, 165.2, 165.2),
    CardPeak("NVIDIA GeForce RTX 3090", _GA102, 35.6, 35.6, 71, 71),
    CardPeak("(NVIDIA )?GeForce RTX 2080 Ti", _TURING, 13.4, None, 53.8, None),
)  # fmt: skip


def teraflops(card: str, format: Format) -> float | str:
    """Returns a card's peak rate in 10^12 FLOPs per second, or why it is unknown."""
    peak = next((peak for peak in PEAKS if re.fullmatch(peak.name, card)), None)
    if peak is None:
        return f"the peak rates of '{card}' are unknown (ppcls/bench/train/peak_flops.py)"
    rate: float | None = getattr(peak, format.lower())
    return f"{card} has no {format} units" if rate is None else rate


def utilization(images_per_second: float, multiply_adds: int, teraflops: float) -> float:
    """Returns the share of a card's peak rate that training uses, 0..1.

    Args:
        images_per_second: Images per second of one card.
        multiply_adds: Multiply-adds of one image's forward pass; see `ppcls.arch.cost.Cost`.
        teraflops: Peak rate of the card.
    """
    return images_per_second * multiply_adds * _TRAINING / (teraflops * 1e12)

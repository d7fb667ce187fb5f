"""Peak compute rates of GPUs, and the share of them that training uses (MFU).

Model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B) is the number of FLOPs that the model needs,
divided by the number that the card could have computed in the same time.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Format = Literal["float32", "TF32", "float16", "bfloat16"]

# A multiply-add is two operations. The backward pass computes a gradient for both operands of each product of
# the forward pass, so a training step needs three times the forward pass.
_TRAINING = 2 * 3


class CardPeak(NamedTuple):
    """Peak rates of one kind of card, in 10^12 dense FLOPs per second; None for a format it does not have.

    The name is a regular expression for the card's whole name in NVML and CUDA; a part of a card (MIG) does
    not match. ``float32`` is the rate of ordinary cores, the others are those of tensor cores, float16 with
    accumulation in float32.
    """

    name: str
    float32: float
    tf32: float | None
    float16: float
    bfloat16: float | None


PEAKS = (
    # NVIDIA's datasheets of each card (half of the sparse rates), and the H100 PCIe's product brief
    CardPeak("NVIDIA H200", 67, 494.5, 989.5, 989.5),
    CardPeak("NVIDIA H100 PCIe", 51, 378, 756, 756),
    CardPeak("NVIDIA A100-(SXM4|PCIE|PCIe)-(40|80)GB|NVIDIA A100 80GB PCIe", 19.5, 156, 312, 312),
    CardPeak("NVIDIA A30", 10.3, 82, 165, 165),
    CardPeak("NVIDIA A40", 37.4, 74.8, 149.7, 149.7),
    CardPeak("NVIDIA A10", 31.2, 62.5, 125, 125),
    CardPeak("NVIDIA L40S", 91.6, 183, 362, 362),
    CardPeak("NVIDIA L4", 30.3, 60, 121, 121),
    CardPeak("(NVIDIA )?Tesla V100-SXM2-(16|32)GB", 15.7, None, 125, None),
    CardPeak("(NVIDIA )?Tesla V100-PCIE-(16|32)GB", 14, None, 112, None),
    CardPeak("(NVIDIA )?Tesla T4", 8.1, None, 65, None),
    # NVIDIA's white papers: H100 (Hopper), table of peak rates; Ada, Ampere GA102 and Turing, appendix A
    CardPeak("NVIDIA H100 80GB HBM3", 66.9, 494.7, 989.4, 989.4),
    CardPeak("NVIDIA GeForce RTX 4090", 82.6, 82.6, 165.2, 165.2),
    CardPeak("NVIDIA GeForce RTX 3090", 35.6, 35.6, 71, 71),
    CardPeak("(NVIDIA )?GeForce RTX 2080 Ti", 13.4, None, 53.8, None),
)


def teraflops(card: str, format: Format) -> float | str:
    """Returns a card's peak rate in 10^12 FLOPs per second, or why it is unknown."""
    peak = next((peak for peak in PEAKS if re.fullmatch(peak.name, card)), None)
    if peak is None:
        return f"the peak rates of '{card}' are unknown (ppcls/bench/train/peak_flops.py)"
    rate: float | None = getattr(peak, format.lower())
    return f"{card} has no {format} units" if rate is None else float(rate)


def utilization(images_per_second: float, multiply_adds: int, teraflops: float) -> float:
    """Returns the share of a card's peak rate that training uses, 0..1.

    Args:
        images_per_second: Images per second of one card.
        multiply_adds: Multiply-adds of one image's forward pass; see `ppcls.arch.cost.Cost`.
        teraflops: Peak rate of the card.
    """
    return images_per_second * multiply_adds * _TRAINING / (teraflops * 1e12)

"""Peak compute rates of GPUs, and the share of the peak rate that training uses (MFU).

Model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B) is the number of FLOPs that the model needs,
divided by the number of FLOPs that the GPU can compute in the same time.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Format = Literal["float32", "TF32", "float16", "bfloat16"]

# A multiply-add is two operations. For each product of the forward pass, the backward pass computes two
# products: the gradients of both operands. So a training step needs three times the operations of a forward
# pass.
_TRAINING = 2 * 3


class CardPeak(NamedTuple):
    """Peak rates of one model of GPU, in 10^12 dense FLOPs per second; None for a format that it lacks.

    ``name`` is a regular expression for the whole name of the GPU in NVML and CUDA. It does not match a part
    of a GPU (MIG). ``float32`` is the rate of the CUDA cores. The other rates are those of the tensor cores,
    for float16 with accumulation in float32.
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
    """Returns the peak rate of a GPU in 10^12 FLOPs per second, or the reason why it is unknown."""
    peak = next((peak for peak in PEAKS if re.fullmatch(peak.name, card)), None)
    if peak is None:
        return f"the peak rates of '{card}' are unknown (ppcls/bench/train/peak_flops.py)"
    rate: float | None = getattr(peak, format.lower())
    return f"{card} has no {format} units" if rate is None else float(rate)


def utilization(images_per_second: float, multiply_adds: int, teraflops: float) -> float:
    """Returns the share of a GPU's peak rate that training uses, 0..1.

    Args:
        images_per_second: Images per second on one GPU.
        multiply_adds: Multiply-adds of the forward pass for one image; see `ppcls.arch.cost.Cost`.
        teraflops: Peak rate of the GPU in 10^12 FLOPs per second.
    """
    return images_per_second * multiply_adds * _TRAINING / (teraflops * 1e12)

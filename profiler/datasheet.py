"""What the maker says that known cards can do: dense bf16 with fp32 accumulation, and memory.

Names are NVML's without "NVIDIA"; a name that is not exactly here (a laptop's, a "D") is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LOW = 0.7  # measured below this share of the data sheet: something is wrong


@dataclass(frozen=True, slots=True)
class Sheet:
    """tflops: 10^12 FLOP/s, bf16, no sparsity; gb_per_s: 10^9 bytes/s."""

    tflops: float
    gb_per_s: float


SHEETS: Mapping[str, Sheet] = MappingProxyType(
    {
        # NVIDIA Ampere GA102 whitepaper v2.1, appendix: peak BF16 tensor, FP32 accumulate
        "GeForce RTX 3090": Sheet(71.0, 936),
        "GeForce RTX 3090 Ti": Sheet(80.0, 1008),
        "RTX A6000": Sheet(154.8, 768),
        # NVIDIA Ada GPU architecture whitepaper v2.02, appendix A and B; 4080 (16 GB), 4090
        "GeForce RTX 4090": Sheet(165.2, 1008),
        "GeForce RTX 4080": Sheet(97.5, 716.8),
        "RTX 6000 Ada Generation": Sheet(364.2, 960),
        # GeForce comparison page gives "AI TOPS" (FP8, sparse): bf16 dense is an eighth of it
        "GeForce RTX 4080 SUPER": Sheet(104.5, 736),
        "GeForce RTX 4070 Ti SUPER": Sheet(88.2, 672),
        # NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A
        "GeForce RTX 5090": Sheet(209.5, 1792),
        "GeForce RTX 5080": Sheet(112.6, 960),
        # Data sheets: A100 (2021), H100 (2023, halved: they count sparsity), H200, L4, L40S
        "A100-PCIE-40GB": Sheet(312, 1555),
        "A100-SXM4-40GB": Sheet(312, 1555),
        "A100 80GB PCIe": Sheet(312, 1935),
        "A100-SXM4-80GB": Sheet(312, 2039),
        "H100 PCIe": Sheet(756.5, 2039),
        "H100 80GB HBM3": Sheet(989.4, 3350),
        "H100 NVL": Sheet(835.5, 3938),
        "H200": Sheet(989.4, 4800),
        "L4": Sheet(121, 300),
        "L40S": Sheet(362, 864),
    }
)


def sheet_of(name: str) -> Sheet | None:
    """By NVML's name of the card."""
    return SHEETS.get(name.removeprefix("NVIDIA "))


def compare(name: str, flops_per_s: float | None, bytes_per_s: float) -> tuple[str, bool] | None:
    """(what was measured beside the data sheet, whether it is far below); None: unknown card.

    flops_per_s: measured peak in bf16, if it was.
    """
    sheet = sheet_of(name)
    if sheet is None:
        return None
    memory = bytes_per_s / (sheet.gb_per_s * 1e9)
    told = f"{bytes_per_s / 1e9:.0f} of {sheet.gb_per_s:g} GB/s ({memory:.0%})"
    low = memory < LOW
    if flops_per_s is not None:
        compute = flops_per_s / (sheet.tflops * 1e12)
        told = f"{flops_per_s / 1e12:.0f} of {sheet.tflops:g} TFLOP/s ({compute:.0%}), {told}"
        low = low or compute < LOW
    return told, low

"""Peak figures of known cards by their makers: dense bf16 with fp32 accumulation, and memory.

Names are those of NVML without "NVIDIA". A card whose name differs, such as a laptop's, is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LOW = 0.7  # a measured share of the data sheet below this is suspicious


@dataclass(frozen=True, slots=True)
class DataSheet:
    tflops: float
    """10^12 FLOP/s in bf16 without sparsity."""
    gb_per_s: float
    """10^9 bytes/s of memory."""


SHEETS: Mapping[str, DataSheet] = {
    # NVIDIA Ampere GA102 whitepaper v2.1, appendix: peak BF16 tensor, FP32 accumulate
    "GeForce RTX 3090": DataSheet(71.0, 936),
    "GeForce RTX 3090 Ti": DataSheet(80.0, 1008),
    "RTX A6000": DataSheet(154.8, 768),
    # NVIDIA Ada GPU architecture whitepaper v2.02, appendix A and B; 4080 (16 GB), 4090
    "GeForce RTX 4090": DataSheet(165.2, 1008),
    "GeForce RTX 4080": DataSheet(97.5, 716.8),
    "RTX 6000 Ada Generation": DataSheet(364.2, 960),
    # GeForce comparison page gives "AI TOPS" (FP8, sparse): bf16 dense is an eighth of it
    "GeForce RTX 4080 SUPER": DataSheet(104.5, 736),
    "GeForce RTX 4070 Ti SUPER": DataSheet(88.2, 672),
    # NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A
    "GeForce RTX 5090": DataSheet(209.5, 1792),
    "GeForce RTX 5080": DataSheet(112.6, 960),
    # Data sheets: A100 (2021), H100 (2023, halved: they count sparsity), H200, L4, L40S
    "A100-PCIE-40GB": DataSheet(312, 1555),
    "A100-SXM4-40GB": DataSheet(312, 1555),
    "A100 80GB PCIe": DataSheet(312, 1935),
    "A100-SXM4-80GB": DataSheet(312, 2039),
    "H100 PCIe": DataSheet(756.5, 2039),
    "H100 80GB HBM3": DataSheet(989.4, 3350),
    "H100 NVL": DataSheet(835.5, 3938),
    "H200": DataSheet(989.4, 4800),
    "L4": DataSheet(121, 300),
    "L40S": DataSheet(362, 864),
}


def find_sheet(name: str) -> DataSheet | None:
    """None when the card is unknown."""
    return SHEETS.get(name.removeprefix("NVIDIA "))


def compare(name: str, flops_per_s: float | None, bytes_per_s: float) -> tuple[str, bool] | None:
    """(the measured figures with those of the data sheet, whether they are far below it).

    `flops_per_s` is the measured peak in bf16, if any. None for an unknown card.
    """
    sheet = find_sheet(name)
    if sheet is None:
        return None
    memory = bytes_per_s / (sheet.gb_per_s * 1e9)
    text = f"{bytes_per_s / 1e9:.0f} of {sheet.gb_per_s:g} GB/s ({memory:.0%})"
    low = memory < LOW
    if flops_per_s is not None:
        compute = flops_per_s / (sheet.tflops * 1e12)
        text = f"{flops_per_s / 1e12:.0f} of {sheet.tflops:g} TFLOP/s ({compute:.0%}), {text}"
        low = low or compute < LOW
    return text, low

"""The number of a model's weights and the memory that they take, by the headers of their files."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

_FLOAT = ("F64", "F32", "F16", "BF16")
_BITS = {"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8}
_WEIGHTS = ("weight", "bias", "qweight", "weight_packed")
"""Last parts of the names of a quantized checkpoint's weights. Its other tensors are scales, zero
points and indices."""


def count_weights(
    tensors: Mapping[str, Mapping[str, Any]],
    quantized: Mapping[str, Any] | None,
    *,
    dtype_bytes: int,
    is_fp8: bool = False,
) -> tuple[int, int]:
    """Return (weights, bytes that they take when they are loaded).

    Floats are loaded in `dtype_bytes` each. A quantized checkpoint packs several weights into one
    integer and is loaded as it is stored.

    Args:
        tensors: headers by name, see `checkpoints.read_tensors`.
        quantized: `quantization_config` of the model's config.json, if it has one.
        is_fp8: the engine quantizes the matrices of all layers to 8 bits while it loads them.
    """
    bits = _find_bits(quantized)
    weights = stored = 0
    for name, tensor in tensors.items():
        count, kind = prod(tensor["shape"]), tensor["dtype"]
        if quantized is not None and name.rpartition(".")[2] not in _WEIGHTS:
            stored += _measure(tensor)
        elif kind in _FLOAT:
            is_matrix = ".layers." in name and len(tensor["shape"]) == 2
            weights += count
            stored += count * (1 if is_fp8 and is_matrix else dtype_bytes)
        else:
            weights += count * _BITS.get(kind, bits) // bits
            stored += _measure(tensor)
    return weights, stored


def _find_bits(quantized: Mapping[str, Any] | None) -> int:
    """Bits of a packed weight: as AWQ and GPTQ name them, or as compressed-tensors does."""
    found = dict(quantized or {})
    for group in (found.get("config_groups") or {}).values():
        found = {**(group.get("weights") or {}), **found}
    return int(found.get("bits") or found.get("w_bit") or found.get("num_bits") or 8)


def _measure(tensor: Mapping[str, Any]) -> int:
    start, end = tensor["data_offsets"]
    return int(end - start)

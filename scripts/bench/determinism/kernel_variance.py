"""Emulates kernels whose sums depend on the batch, where a machine's own do not.

A matrix product is cut along the summed dimension, and the parts are added in the model's dtype. In
how many parts depends on the rows of the batch, as it does where a kernel chooses its split by
shape; with `by_row` also on the row's place in the batch. Each part is computed in float64, so that
nothing but this choice makes a difference. The error is that of a real bf16 kernel that rounds its
partial sums, so it is larger than on most cards: what is missing shows sooner.
"""

from enum import StrEnum
from typing import Any

import torch

PLACES = 3
"""With `by_row`: rows are treated alike whose places are equal modulo this."""
MOST_PARTS = 5


class Kernels(StrEnum):
    """Which kernels the matrix products of this process use."""

    OWN = "own"
    """vLLM's, of this machine."""
    BATCH = "batch"
    """Emulated: a sum depends on the rows of the batch."""
    ROW = "row"
    """Emulated: it also depends on the row's place."""


current = Kernels.OWN
"""May be set between two steps."""


def install() -> None:
    """Let the models that this process loads from now on obey `current`.

    For a process of its own: nothing undoes it.
    """
    from vllm.model_executor.layers import utils

    dispatch_own = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight.detach().double().t().contiguous()
        dispatch_own(layer, remove_weight)
        multiply_own = layer.cpu_linear

        def apply(x: torch.Tensor, own: Any, bias: torch.Tensor | None) -> torch.Tensor:
            if current is Kernels.OWN:
                found: torch.Tensor = multiply_own(x, own, bias)
                return found
            return multiply(x, weight, bias, by_row=current is Kernels.ROW)

        layer.cpu_linear = apply

    utils.dispatch_cpu_unquantized_gemm = dispatch


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, by_row: bool
) -> torch.Tensor:
    """x: (rows, summed); weight: (summed, columns) float64. Returns (rows, columns)."""
    rows = x.shape[0]
    places = PLACES if by_row else 1
    found = torch.empty(rows, weight.shape[1], dtype=x.dtype, device=x.device)
    for place in range(min(places, rows)):
        parts = count_parts(rows, place)
        some = x[place::places].double()
        total: torch.Tensor | None = None
        pieces = some.tensor_split(parts, dim=1), weight.tensor_split(parts)
        for columns, rows_of_weight in zip(*pieces, strict=True):
            part = (columns @ rows_of_weight).to(x.dtype)
            total = part if total is None else total + part
        assert total is not None, "there is at least one part"
        found[place::places] = total
    return found if bias is None else found + bias.to(found.dtype)


def count_parts(rows: int, place: int) -> int:
    """In how many parts the sums of a row are added."""
    return 1 + (rows * 2654435761 + place * 40503) // 8 % MOST_PARTS

"""Muon for the matrices of the layers, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """Move a matrix towards the nearest orthogonal one, by Newton-Schulz steps in bfloat16.

    Ref: Jordan et al., "Muon: An optimizer for hidden layers in neural networks".
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    x = x / (x.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    orthogonal: Tensor = (x.T if tall else x).to(matrix.dtype)
    return orthogonal


class Muon(torch.optim.Optimizer):
    """Momentum with an orthogonalized direction, for 2-D weights."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.0,
    ):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make one update. The caller has computed the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                buffer = state["momentum"]
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalize(parameter.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)


def make_optimizers(
    model: nn.Module, matrix_lr: float, other_lr: float
) -> list[torch.optim.Optimizer]:
    """Use Muon for the 2-D weights inside layers, AdamW for embeddings, biases, norms and heads.

    Frozen parameters are left out.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_matrix = parameter.dim() == 2 and ".layers." in name
        (matrices if is_matrix else others).append(parameter)
    return [
        Muon(matrices, lr=matrix_lr),
        torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]

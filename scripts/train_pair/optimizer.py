"""Muon for the matrices of the layers, AdamW for everything else."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Move matrices towards the nearest orthogonal ones, by Newton-Schulz steps.

    On a card in bfloat16; many a CPU only emulates that.

    matrices: (count, rows, columns).
    Ref: Jordan et al., "Muon: An optimizer for hidden layers in neural networks".
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    orthogonal: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return orthogonal


class Muon(torch.optim.Optimizer):
    """Momentum with an orthogonalized direction, for 2-D weights."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make one update. The caller has computed the gradients.

        Matrices of one shape are updated together: on a card the number of kernels is the cost.
        """
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                states = [self.state[parameter] for parameter in parameters]
                for parameter, state in zip(parameters, states, strict=True):
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(parameter)
                gradients = [p.grad for p in parameters if p.grad is not None]
                buffers = [state["momentum"] for state in states]
                torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, buffers, group["momentum"])
                updates = orthogonalize(torch.stack(list(ahead))).unbind()
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_add_(parameters, updates, alpha=-group["lr"] * scale)


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

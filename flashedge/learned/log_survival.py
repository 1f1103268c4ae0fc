"""ln P(T > z) of Student's t-distribution, with the gradients that PyTorch lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

STEP = 1e-4
"""Relative step of the numeric derivative in nu."""


class LogSurvival(torch.autograd.Function):
    """Computes on the CPU by SciPy, in fp64. z and nu: the same shape."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, nu: Tensor) -> Tensor:
        at, freedom = _to_array(z), _to_array(nu)
        ctx.save_for_backward(z, nu)
        return _to_tensor(np.log(special.stdtr(freedom, -at)), z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, nu = ctx.saved_tensors
        at, freedom = _to_array(z), _to_array(nu)
        by_z = by_nu = None
        if ctx.needs_input_grad[0]:
            log_density = _compute_log_density(at, freedom)
            hazard = np.exp(log_density - np.log(special.stdtr(freedom, -at)))
            by_z = grads[0] * _to_tensor(-hazard, z)
        if ctx.needs_input_grad[1]:
            up, down = freedom * (1 + STEP), freedom * (1 - STEP)
            difference = np.log(special.stdtr(up, -at)) - np.log(special.stdtr(down, -at))
            by_nu = grads[0] * _to_tensor(difference / (2 * STEP * freedom), nu)
        return by_z, by_nu


def compute_log_survival(z: Tensor, nu: Tensor) -> Tensor:
    """ln P(T > z), elementwise. z, nu: (n,) -> (n,)."""
    found: Tensor = LogSurvival.apply(z, nu)  # type: ignore[no-untyped-call]
    return found


def compute_log_density(z: Tensor, nu: Tensor) -> Tensor:
    """ln of Student's density, elementwise. z, nu: (n,) -> (n,)."""
    half = (nu + 1) / 2
    constant = torch.lgamma(half) - torch.lgamma(nu / 2) - 0.5 * torch.log(nu * torch.pi)
    return constant - half * torch.log1p(z * z / nu)


def _compute_log_density(z: NDArray[np.float64], nu: NDArray[np.float64]) -> NDArray[np.float64]:
    half = (nu + 1) / 2
    constant = special.gammaln(half) - special.gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
    return np.asarray(constant - half * np.log1p(z * z / nu))


def _to_array(values: Tensor) -> NDArray[np.float64]:
    return values.detach().cpu().double().numpy()


def _to_tensor(values: NDArray[np.float64], like: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(values)).to(like)

"""Student's tail in PyTorch: values, and gradients in both arguments."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from flashedge.learned.log_survival import compute_log_density, compute_log_survival

Z = torch.tensor([-40.0, -3.0, -0.5, 0.0, 0.7, 4.0, 60.0], dtype=torch.float64)
NU = torch.tensor([3.5, 3.5, 1.0, 8.0, 0.8, 30.0, 3.5], dtype=torch.float64)


def test_values_are_those_of_scipy_even_far_in_the_tail() -> None:
    survival = compute_log_survival(Z, NU).numpy()
    density = compute_log_density(Z, NU).numpy()
    np.testing.assert_allclose(survival, stats.t.logsf(Z.numpy(), NU.numpy()), rtol=1e-8)
    np.testing.assert_allclose(density, stats.t.logpdf(Z.numpy(), NU.numpy()), rtol=1e-8)


def test_gradients_are_those_of_the_values() -> None:
    z, nu = Z.clone().requires_grad_(), NU.clone().requires_grad_()
    assert torch.autograd.gradcheck(compute_log_survival, (z, nu), atol=1e-6, rtol=1e-4)
    assert torch.autograd.gradcheck(compute_log_density, (z, nu))


def test_gradients_flow_in_single_precision() -> None:
    z = torch.tensor([0.5, 2.0], requires_grad=True)
    found = compute_log_survival(z, torch.full((2,), 3.5))
    assert found.dtype == torch.float32
    found.sum().backward()
    assert z.grad is not None
    assert bool((z.grad < 0).all())

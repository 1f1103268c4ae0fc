"""What training minimizes, for each objective."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from flashedge.learned.log_survival import compute_log_density, compute_log_survival
from flashedge.learned.model import LOCATION, LOG_NU, LOG_SCALE
from flashedge.learned.settings import LOG_NORMAL, LOG_T_FREE, ModelSettings
from flashedge.learned.targets import Outputs


def compute_nats(parameters: Tensor, outputs: Outputs, settings: ModelSettings) -> Tensor:
    """Negative log-likelihood of one output's logarithm, the mean over the prompts.

    parameters: (batch, heads) of `LengthModel.restore`. A censored output counts as longer, so
    a prompt all of whose outputs are censored still teaches that it is long.
    """
    own = parameters[outputs.prompt]
    log_scale = own[:, LOG_SCALE]
    z = (outputs.logs - own[:, LOCATION]) / log_scale.exp()
    cut = outputs.is_censored
    found = torch.zeros_like(z)
    if settings.family == LOG_NORMAL:
        half_log_2pi = 0.5 * torch.log(torch.tensor(2 * torch.pi))
        density = -0.5 * z[~cut] ** 2 - half_log_2pi
        survival = torch.special.log_ndtr(-z[cut])
    else:
        free = settings.family == LOG_T_FREE
        nu = own[:, LOG_NU].exp() if free else torch.full_like(z, settings.nu)
        density = compute_log_density(z[~cut], nu[~cut])
        survival = compute_log_survival(z[cut], nu[cut])
    found = found.masked_scatter(~cut, density - log_scale[~cut])
    found = found.masked_scatter(cut, survival)
    return -(found * outputs.weights).sum() / len(parameters)


def compute_squares(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of z-scores. scores, targets: (batch, heads). The paper's loss."""
    return functional.mse_loss(scores, targets)


def compute_list_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """ListMLE: the negative log-likelihood of the batch's order, for each prompt.

    scores: (batch, 1), larger for longer outputs. targets: (batch, 1) that they are to be sorted
    by, the longest first. Ref: Xia et al., ICML 2008; Fu et al., arXiv 2408.15792 (LTR).
    """
    ordered = scores[:, 0][targets[:, 0].argsort(descending=True)]
    rest = ordered.flip(0).logcumsumexp(0).flip(0)
    return (rest - ordered).mean()

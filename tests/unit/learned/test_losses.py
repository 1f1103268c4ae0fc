"""What training minimizes: likelihoods with cuts, and the order of a batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flashedge.learned.losses import compute_list_loss, compute_nats, compute_squares
from flashedge.learned.settings import FAMILIES, LOG_NORMAL, LOG_T, LOG_T_FREE, ModelSettings
from flashedge.learned.targets import fit_targets, gather_outputs
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.observed import OutputLengths

CUT = OutputLengths.from_outputs([50, 70, 90], [False, True, False])
TREE = OutputLengths(tokens=(40, 60, 30), is_censored=(False, True, True), weights=(2.0, 3.0, -1.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_likelihood_is_that_of_the_distribution(family: str) -> None:
    rows = {LOG_T: (4.2, math.log(0.3)), LOG_NORMAL: (4.2, math.log(0.3))}
    row = rows.get(family, (4.2, math.log(0.3), math.log(6.0)))
    distributions: dict[str, LengthDistribution] = {
        LOG_T: LogT(4.2, 0.3),
        LOG_NORMAL: LogNormal(4.2, 0.3),
        LOG_T_FREE: LogT(4.2, 0.3, 6.0),
    }
    parameters = torch.tensor([row, row])
    lengths = [CUT, TREE]
    found = compute_nats(parameters, gather_outputs(lengths), ModelSettings(family=family))
    expected = 0.0
    for one in lengths:
        nats = -one.compute_log_likelihood(distributions[family])
        ends = np.log(one.ended).sum()  # the loss is of ln tokens, which have another density
        expected += (nats - ends) / one.num_outputs / 2
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_prompts_that_were_only_cut_push_the_location_up() -> None:
    parameters = torch.tensor([[4.0, math.log(0.3)]], requires_grad=True)
    outputs = gather_outputs([OutputLengths.from_outputs([200, 200], [True, True])])
    compute_nats(parameters, outputs, ModelSettings()).backward()
    assert parameters.grad is not None
    assert float(parameters.grad[0, 0]) < 0


def test_the_list_loss_is_least_in_the_right_order() -> None:
    targets = torch.tensor([[1.0], [3.0], [2.0]])
    right = compute_list_loss(torch.tensor([[-4.0], [4.0], [0.0]]), targets)
    wrong = compute_list_loss(torch.tensor([[4.0], [-4.0], [0.0]]), targets)
    flat = compute_list_loss(torch.zeros(3, 1), targets)
    assert right < flat < wrong
    assert float(flat) == pytest.approx(math.log(6) / 3)


def test_targets_are_fitted_to_each_prompt() -> None:
    lengths = [OutputLengths.from_outputs([100, 110, 90] * 7), CUT]
    fitted = fit_targets(lengths, ModelSettings())
    assert fitted.shape == (2, 2)
    assert float(fitted[0, 0]) == pytest.approx(math.log(100), abs=0.05)
    point = fit_targets(lengths, ModelSettings(objective="point"))
    logs = np.log([100, 110, 90]).mean()
    assert float(point[0, 0]) == pytest.approx(logs, abs=0.01)
    assert float(point[1, 0]) > np.log([50, 70, 90]).mean()  # the cut one was longer
    assert fit_targets(lengths, ModelSettings(family=LOG_T_FREE)).shape == (2, 3)
    assert float(compute_squares(fitted, fitted)) == 0

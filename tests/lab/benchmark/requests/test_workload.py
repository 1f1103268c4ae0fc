"""Lengths that disperse as told, and predictions with errors of a known size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs.active import ActivePrograms, Rules
from flashedge.scheduling.programs.policies import Decay, FirstCome, LeastWork
from flashedge.scheduling.programs.program import Member
from scripts.lab.benchmark.requests.event_driven import FixedOrder, sort_waiting
from scripts.lab.benchmark.requests.predictions import (
    LOG_NORMAL_SPREAD,
    PAPER,
    Predictions,
    Quality,
    predict,
)
from scripts.lab.benchmark.requests.prompts import (
    DEFAULT,
    SHIFTED,
    LengthPrior,
    Prompts,
    draw_prompts,
    draw_trace_prompts,
    measure_dispersion,
    scale_to_dispersion,
)
from scripts.lab.benchmark.requests.rivals import NAMES, EscalatingOrder, Rivals
from scripts.lab.distributions import LogNormal, Point

PRIOR = scale_to_dispersion(DEFAULT, 1.09)


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return draw_prompts(PRIOR, 400, seed=1)


@pytest.fixture(scope="module")
def predictions(prompts: Prompts) -> Predictions:
    return predict(prompts, PRIOR, PAPER, seed=1)


def test_dispersion_by_hand() -> None:
    samples = [np.array([1, 3]), np.array([10, 10, 10, 10])]
    found = measure_dispersion(samples, 10)
    spread = 2**0.5 / 2  # of 1 and 3, over their mean
    assert found.within_cv == pytest.approx(spread / 2)
    assert found.between_cv == pytest.approx(np.std([2, 10], ddof=1) / 6)
    assert found.mean_tokens == pytest.approx(44 / 6)
    assert found.p90_over_p50 == pytest.approx((2.8 / 2 + 1) / 2)
    assert found.cut_share == pytest.approx(4 / 6)
    assert (found.prompts, found.samples) == (2, 2)


@pytest.mark.parametrize("within_cv", [0.08, 0.5, 1.09])
def test_sigma_is_scaled_to_the_dispersion(within_cv: float) -> None:
    prior = scale_to_dispersion(DEFAULT, within_cv)
    found = draw_prompts(prior, 500, seed=3).dispersion
    assert found.within_cv == pytest.approx(within_cv, rel=0.12)
    assert replace(prior, sigma=DEFAULT.sigma) == DEFAULT
    with pytest.raises(ValueError, match="coefficient of variation of 99"):
        scale_to_dispersion(DEFAULT, 99.0)


def test_the_default_prior_is_as_the_paper_tells() -> None:
    found = draw_prompts(DEFAULT, 500, seed=0).dispersion
    assert found.mean_tokens == pytest.approx(177, rel=0.25)
    assert found.within_cv == pytest.approx(1.09, rel=0.2)
    assert found.p90_over_p50 == pytest.approx(4.62, rel=0.3)
    assert found.p99_over_p50 == pytest.approx(10.77, rel=0.3)


def test_prompts_are_the_same_again_and_within_limits(prompts: Prompts) -> None:
    again = draw_prompts(PRIOR, 400, seed=1)
    assert (again.output_tokens == prompts.output_tokens).all()
    assert (draw_prompts(PRIOR, 400, seed=2).output_tokens != prompts.output_tokens).any()
    assert prompts.output_tokens.min() >= 1
    assert prompts.output_tokens.max() <= PRIOR.max_tokens
    assert prompts.prompt_tokens.min() >= 1


def test_the_trace_has_problems_of_real_steps() -> None:
    plain = draw_trace_prompts(300, seed=1)
    assert plain.dispersion.within_cv < 0.4
    assert 200 < plain.output_tokens.mean() < 382  # the mean of all problems
    # the fitted distributions tell long problems from short ones
    assert np.corrcoef(plain.mu, np.log(plain.output_tokens))[0, 1] > 0.7
    mixed = draw_trace_prompts(300, seed=1, chats=DEFAULT)
    assert mixed.dispersion.within_cv > 2 * plain.dispersion.within_cv
    assert "chats" in mixed.about


def test_predictions_explain_the_share_that_is_told() -> None:
    many = draw_prompts(PRIOR, 5000, seed=5)
    for quality in (PAPER, Quality(mu=0.5, sigma=0.3)):
        found = predict(many, PRIOR, quality, seed=5)
        for truth, said, share in (
            (many.mu, found.mu, quality.mu),
            (np.log(many.sigma), np.log(found.sigma), quality.sigma),
        ):
            unexplained = np.mean((truth - said) ** 2) / truth.var()
            assert 1 - unexplained == pytest.approx(share, abs=0.03)
            slope = np.cov(truth, said)[0, 1] / said.var()
            assert slope == pytest.approx(1.0, abs=0.05)  # it is a conditional mean


def test_perfect_predictions_are_the_truth(prompts: Prompts) -> None:
    found = predict(prompts, PRIOR, Quality(mu=1.0, sigma=1.0), seed=1)
    assert np.allclose(found.mu, prompts.mu)
    assert np.allclose(found.sigma, prompts.sigma)


def test_a_predictor_of_other_work_errs_towards_it() -> None:
    other = draw_prompts(SHIFTED, 2000, seed=6)
    said = predict(other, PRIOR, PAPER, seed=6)
    assert PRIOR.mu < said.mu.mean() < other.mu.mean()


def test_all_rivals_order_the_requests(prompts: Prompts, predictions: Predictions) -> None:
    rivals, arrived_s = Rivals(prompts, predictions, seed=1), np.arange(400.0)
    waiting = np.arange(400)
    orders = {
        name: sort_waiting(rivals.order(name, arrived_s, 64), waiting, 400.0) for name in NAMES
    }
    assert all(sorted(order.tolist()) == waiting.tolist() for order in orders.values())
    assert (orders["fcfs"] == waiting).all()
    lengths = prompts.output_tokens
    assert (np.diff(lengths[orders["oracle_length"]]) >= 0).all()
    assert (np.diff(prompts.mu[orders["ssjf"]]) < 0).any()  # it errs
    assert (np.diff(predictions.mu[orders["ssjf"]]) >= 0).all()
    ranks = predictions.list_ranks(prompts.nu)
    assert 0 < ranks.min() < ranks.max() < 1
    assert np.corrcoef(ranks, predictions.mu)[0, 1] > 0.9
    # under pressure the adaptive weight is 0.5, without it 0.1
    assert (orders["tie"] == orders["tie_05"]).all()
    few = waiting[:3]
    calm = [sort_waiting(rivals.order(n, arrived_s, 64), few, 400.0) for n in ("tie", "tie_01")]
    assert (calm[0] == calm[1]).all()
    assert (orders["tie"] != orders["sept"]).any()
    assert (orders["log_normal"] != orders["tie"]).any()
    with pytest.raises(KeyError):
        rivals.order("nobody", arrived_s, 64)


def test_per_token_order_of_log_normal_lengths_is_that_of_medians() -> None:
    prior = LengthPrior(nu=1e6, max_tokens=10**9, sigma=0.3, sigma_spread=0.2)
    many = draw_prompts(prior, 300, seed=2)
    said = predict(many, prior, Quality(mu=1.0, sigma=1.0), seed=2)
    scores = Rivals(many, said, seed=2).order("per_token", np.zeros(300), 1)
    assert isinstance(scores, FixedOrder)
    assert np.allclose(np.log(scores.scores), 2 * many.mu, rtol=0.02)


def test_waiting_decays_a_score(prompts: Prompts, predictions: Predictions) -> None:
    rivals = Rivals(prompts, predictions, seed=1)
    arrived_s = np.zeros(400)
    arrived_s[1:] = 99.0
    decay = Decay(factor=0.01, interval_s=10.0)
    waiting = np.arange(400)
    last = sort_waiting(rivals.order("sept", arrived_s, 64), waiting, 100.0)[-1]
    arrived_s[:] = 99.0
    arrived_s[last] = 0.0  # the longest one has waited for long
    assert sort_waiting(rivals.order("sept", arrived_s, 64, decay), waiting, 100.0)[0] == last


def test_escalation_goes_by_arrival() -> None:
    arrived_s = np.array([0.0, 1.0, 2.0, 50.0])
    order = EscalatingOrder(
        inner=FixedOrder(scores=np.array([9.0, 8.0, -99.0, 1.0])), arrived_s=arrived_s, after_s=59.0
    )
    waiting = np.arange(4)
    assert sort_waiting(order, waiting, 55.0).tolist() == [2, 3, 1, 0]
    assert sort_waiting(order, waiting, 60.0).tolist() == [0, 1, 2, 3]


def test_only_as_many_as_needed_are_sorted() -> None:
    draw = np.random.default_rng(1)
    waiting = np.flatnonzero(draw.random(300) < 0.5)
    order = FixedOrder(scores=draw.integers(0, 20, 300).astype(float))  # with many ties
    whole = sort_waiting(order, waiting, 0.0)
    for most in (1, 7, len(waiting), 999):
        assert sort_waiting(order, waiting, 0.0, most).tolist() == whole[:most].tolist()


@pytest.mark.parametrize("name", ["fcfs", "ssjf", "sept", "tie", "tie_01", "log_normal"])
@pytest.mark.parametrize("after_s", [None, 60.0])
def test_an_order_is_that_of_the_programs_board(
    prompts: Prompts, predictions: Predictions, name: str, after_s: float | None
) -> None:
    """The studies score arrays, the daemon a board of programs. Both give one order."""
    now_s, batch = 100.0, 64
    arrived_s = np.sort(np.random.default_rng(1).random(200)) * now_s
    decay = Decay(factor=0.8, interval_s=10.0)
    order = Rivals(prompts, predictions, seed=1).order(name, arrived_s, batch, decay)
    policy = {
        "fcfs": FirstCome(),
        "ssjf": LeastWork(decay=decay),
        "sept": LeastWork(decay=decay),
        "tie_01": LeastWork(tail_weight=0.1, decay=decay),
    }.get(name, LeastWork(tail_weight=None, decay=decay))
    rules = Rules(
        policy=policy, is_gang=False, is_fair=False, ranks_kinds=False, escalate_after_s=after_s
    )
    board = ActivePrograms(rules)
    for number in range(200):
        mu, sigma = float(predictions.mu[number]), float(predictions.sigma[number])
        member = Member(
            max_tokens=prompts.max_tokens,
            lengths={
                "ssjf": Point(min(np.exp(mu), prompts.max_tokens)),
                "log_normal": LogNormal(mu, sigma * LOG_NORMAL_SPREAD),
            }.get(name, LogT(mu, sigma, prompts.nu)),
        )
        key = f"{number:03}"
        board.join(key, member, key, "", float(arrived_s[number]))
    if after_s is not None:
        order = EscalatingOrder(inner=order, arrived_s=arrived_s, after_s=after_s)
    ours = sort_waiting(order, np.arange(200), now_s)
    assert [f"{number:03}" for number in ours] == [
        program.key for program in board.order(now_s, batch)
    ]

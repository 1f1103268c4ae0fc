"""The study of waiting requests: lengths that disperse as told, predictions that err as told."""

from dataclasses import replace

import numpy as np
import pytest

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs.active import ActivePrograms, Rules
from flashedge.scheduling.programs.program import Member
from scripts.bench.mcts.point import Point
from scripts.bench.scheduling import real_requests
from scripts.bench.scheduling.request_orders import (
    _POLICIES,
    LONG_CHATS,
    NAMES,
    WORKLOADS,
    FixedOrder,
    RequestLoad,
    Rivals,
    draw_load,
    draw_prompts,
    scale_to_dispersion,
    sort_waiting,
)
from scripts.lab.benchmark.load.timings import Timings
from scripts.lab.distributions import LengthPrior, measure_dispersion, regress


def test_dispersion_by_hand() -> None:
    found = measure_dispersion([np.array([1, 3]), np.array([10, 10, 10, 10])], 10)
    spread = 2**0.5 / 2  # of 1 and 3, over their mean
    assert found.within_cv == pytest.approx(spread / 2)
    assert found.between_cv == pytest.approx(np.std([2, 10], ddof=1) / 6)
    assert found.mean_tokens == pytest.approx(44 / 6)
    assert found.p90_over_p50 == pytest.approx((2.8 / 2 + 1) / 2)
    assert found.cut_share == pytest.approx(4 / 6)
    assert (found.prompts, found.samples) == (2, 2)


@pytest.mark.parametrize("within_cv", [0.08, 0.5, 1.09])
def test_requests_are_dispersed_as_told(within_cv: float) -> None:
    prior = scale_to_dispersion(LengthPrior(), within_cv)
    found = draw_prompts(prior, 500, 3).dispersion
    assert found.within_cv == pytest.approx(within_cv, rel=0.12)


def test_requests_are_the_same_again_and_within_limits() -> None:
    first, again, other = (draw_load("cv 1.09", 400, seed) for seed in (1, 1, 2))
    assert (first.output_tokens == again.output_tokens).all()
    assert (first.output_tokens != other.output_tokens).any()
    assert 1 <= first.output_tokens.min() <= first.output_tokens.max() <= first.max_tokens
    mixed = draw_load("trace and chats", 400, 1)
    of_trace = mixed.mu != draw_prompts(LONG_CHATS, 400, 1).mu
    assert np.corrcoef(mixed.mu[of_trace], np.log(mixed.output_tokens[of_trace]))[0, 1] > 0.7
    assert first.draw_arrivals(0.5) == pytest.approx(4 * first.draw_arrivals(2.0))
    assert (first.draw_arrivals(np.inf) == 0).all()


@pytest.mark.parametrize("share", [0.82, 0.3])
def test_predictions_explain_the_share_that_is_told(share: float) -> None:
    draw = np.random.default_rng(5)
    truth = 4 + 0.9 * draw.standard_normal(5000)
    said = regress(truth, 4.0, 0.9, share, draw)
    assert 1 - np.mean((truth - said) ** 2) / truth.var() == pytest.approx(share, abs=0.03)
    slope = np.cov(truth, said)[0, 1] / said.var()
    assert slope == pytest.approx(1.0, abs=0.05)  # it is a conditional mean
    assert np.allclose(regress(truth, 4.0, 0.9, 1.0, draw), truth)
    # a predictor errs towards the work that it was trained on
    assert 4.0 < regress(truth + 1, 4.0, 0.9, 0.82, draw).mean() < truth.mean() + 1


@pytest.fixture(scope="module")
def load() -> RequestLoad:
    return draw_load("cv 1.09", 400, 1)


def test_all_rivals_order_the_requests(load: RequestLoad) -> None:
    rivals, arrived_s, waiting = Rivals(load), np.arange(400.0), np.arange(400)
    orders = {n: sort_waiting(rivals.order(n, arrived_s, 64), waiting, 400.0) for n in NAMES}
    assert all(sorted(order.tolist()) == waiting.tolist() for order in orders.values())
    assert (orders["fcfs"] == waiting).all()
    assert (np.diff(load.output_tokens[orders["oracle_length"]]) >= 0).all()
    assert (np.diff(load.mu[orders["ssjf"]]) < 0).any()  # it errs
    assert (np.diff(rivals.mu[orders["ssjf"]]) >= 0).all()
    ranks = rivals.list_ranks()
    assert 0 < ranks.min() < ranks.max() < 1
    assert np.corrcoef(ranks, rivals.mu)[0, 1] > 0.9
    assert (orders["tie"] != orders["sept"]).any()


@pytest.mark.parametrize("name", ["fcfs", "ssjf", "sept", "tie"])
def test_an_order_is_that_of_the_daemons_board(load: RequestLoad, name: str) -> None:
    """The study scores arrays, the daemon a board of programs."""
    rivals, policy = Rivals(load), _POLICIES[name][0]
    arrived = np.sort(np.random.default_rng(1).random(200)) * 100.0
    off = dict.fromkeys(("is_gang", "is_fair", "ranks_kinds"), False)
    board = ActivePrograms(Rules(policy=policy, **off, escalate_after_s=None))
    for n in range(200):
        mu, sigma = float(rivals.mu[n]), float(rivals.sigma[n])
        lengths = Point(min(np.exp(mu), load.max_tokens)) if name == "ssjf" else LogT(mu, sigma)
        member = Member(max_tokens=load.max_tokens, lengths=lengths)
        board.join(f"{n:03}", member, f"{n:03}", "", float(arrived[n]))
    ours = sort_waiting(rivals.order(name, arrived, 64), np.arange(200), 100.0)
    assert [f"{n:03}" for n in ours] == [program.key for program in board.order(100.0, 64)]


def test_per_token_order_of_narrow_lengths_is_that_of_medians(load: RequestLoad) -> None:
    rivals = Rivals(replace(load, max_tokens=10**9))
    rivals.sigma = np.full(400, 0.01)
    order = rivals.order("per_token", np.zeros(400), 1)
    assert isinstance(order, FixedOrder)
    assert np.allclose(np.log(order.scores), 2 * rivals.mu, rtol=0.02)


def test_figures_are_compared_on_the_same_seeds() -> None:
    def serve(slow: float) -> dict[str, float]:
        ended_s = slow * np.arange(1.0, 11.0)
        waits_s, tokens = ended_s - 0.5, np.arange(2, 12)
        return real_requests.describe(Timings(np.zeros(10), waits_s, waits_s, ended_s, tokens))

    assert serve(1.0)["time_to_30_percent_s"] == 3.0
    assert serve(1.0)["order_tau"] == pytest.approx(1.0)
    rows = {"fcfs": serve(4.0), "ssjf": serve(2.0), "ltr": serve(3.0), "tie": serve(1.0)}
    by_seed = {seed: {"1.5": rows, real_requests.BATCH: rows} for seed in range(2)}
    rates = {rate: real_requests.summarize_rate(rate, by_seed) for rate in by_seed[0]}
    assert rates["1.5"]["best_point"]["latency_s"] == "ssjf"
    tie = rates["1.5"]["policies"]["tie"]
    one = {"low": 4.0, "high": 4.0, "seeds": 2}
    assert tie["latency_s_over_fcfs"] == {"value": 4.0, **one}
    assert tie["per_token_s_over_best_point"]["value"] == 2.0
    page = real_requests.print_tables("cv 1.09", {"about": WORKLOADS["cv 1.09"]}, rates)
    assert "| tie | 3.000 s | 4.00 (4.00-4.00) | 2.00 (2.00-2.00) |" in page

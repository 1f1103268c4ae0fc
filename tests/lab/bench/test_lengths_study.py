"""scripts.bench.lengths: what is measured of real lengths, and that models learn from prompts."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from flashedge.scheduling.lengths.distribution import LogT
from scripts.bench.lengths import fits
from scripts.bench.lengths.samples import Samples, describe_spread, measure_repeats, read_samples
from scripts.bench.lengths.text_model import (
    DISTRIBUTIONS,
    LOG,
    LOSSES,
    MEAN,
    TextModel,
    TextSettings,
    compute_list_loss,
    compute_nats,
    train,
)
from scripts.lab.distributions import fit_log_t
from tests.support.length_rig import make_runs

SIZES = {"vocabulary": 16, "max_tokens": 32, "width": 32, "layers": 1, "attention_heads": 2}
STEPS = {"epochs": 12, "head_epochs": 6, "rate": 3e-3, "batch": 16}
TINY = TextSettings(**SIZES, **STEPS, head=(32, 32, 16), dropout=0.0)  # type: ignore[arg-type]


def make_samples(numbers: Sequence[int]) -> list[Samples]:
    return [
        Samples(run.request.text, run.request.prompt_ids, run.lengths.tokens, 4_096)
        for run in make_runs(numbers)
    ]


def repeat(lengths: Sequence[int], limit: int = 9_999) -> Samples:
    return Samples("", (0,), tuple(lengths), limit)


def test_files_with_lengths_of_answers_or_of_steps_are_read(tmp_path: Path) -> None:
    answers, steps = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"
    rows = [{"problem": "ab", "lens": [3, 9]}, {"problem": "c", "lens": [9, 1]}]
    answers.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    steps.write_text(json.dumps({"problem": 0, "prompt_tokens": 2, "step_tokens": [[1, 2], [4]]}))
    first, second = read_samples(answers, lambda text: tuple(text.encode()))
    assert (first.prompt_ids, first.tokens, first.limit) == ((97, 98), (3, 9), 9)
    assert second.is_cut.tolist() == [True, False]
    (other,) = read_samples(steps, lambda text: ())
    assert (other.text, other.prompt_ids, other.tokens) == ("0", (0, 0), (3, 4))
    assert (other.take(0).tokens, other.take(1).tokens) == ((3,), (4,))
    assert first.finished.lengths.is_censored == (False, True)


def test_the_spread_of_lengths_is_found_again() -> None:
    draw = np.random.default_rng(0)
    mu, sigma = draw.normal(5, 0.5, 200), np.exp(draw.normal(-1.5, 0.4, 200))
    samples = [
        repeat(np.exp(m + s * draw.standard_t(3.5, 40)).round().clip(1, 9_000).astype(int).tolist())
        for m, s in zip(mu, sigma, strict=True)
    ]
    found = describe_spread(samples)
    assert found["mu_spread"] == pytest.approx(0.5, rel=0.15)
    assert found["sigma_spread"] == pytest.approx(0.4, rel=0.2)
    assert abs(found["correlation"]) < 0.2
    assert 0.8 < found["sigma_reliability"] < 1
    errors = measure_repeats(samples[:40], (5, 20))
    assert errors[5][1] > 1.5 * errors[20][1] > 0
    assert errors[5][0] < errors[5][1]


def test_spreads_by_hand() -> None:
    found = describe_spread([repeat([1, 3, 1, 3], 10), repeat([10, 10, 10, 10], 10)])
    assert found["within_cv"] == pytest.approx(np.std([1, 3, 1, 3], ddof=1) / 2 / 2, rel=1e-3)
    assert found["between_cv"] == pytest.approx(np.std([2, 10], ddof=1) / 6, rel=1e-3)
    assert (found["cut_share"], found["mean_tokens"]) == (0.5, 6.0)


def test_prompts_of_a_family_prefer_it() -> None:
    draw = np.random.default_rng(0)
    prompts = [repeat(np.rint(np.exp(row)).astype(int)) for row in draw.normal(5, 0.4, (12, 40))]
    found = fits.study_families(prompts)
    assert found["log-normal"][0] == 1
    assert found["exponential"][0] < 0.2
    by_nu = fits.study_freedom(prompts, (1, 30))
    assert by_nu[30] > by_nu[1]


def test_a_test_of_cut_answers_compares_what_ended() -> None:
    draw = np.random.default_rng(3)
    whole = np.exp(draw.normal(5, 0.4, 200)).round().astype(int)
    cut = repeat(np.minimum(whole, 150).tolist(), 150)
    assert fits.compute_p_value(cut, stats.norm, {}, logs=True) > 0.05
    assert fits.compute_p_value(cut, stats.expon, {"floc": 0}, logs=False) < 0.01


@pytest.mark.parametrize("kept", [0.7, 0.4])
def test_a_censored_fit_recovers_what_a_naive_one_does_not(kept: float) -> None:
    true, random = LogT(5.0, 0.4), np.random.default_rng(7)
    whole = true.inverse_survival(1 - random.random(4000)).clip(1)
    limits = float(true.inverse_survival(np.array(1 - kept))) * random.uniform(0.8, 1.25, 4000)
    lengths, is_cut = np.minimum(whole, limits), whole > limits
    found, naive = fit_log_t(lengths, is_cut), fit_log_t(lengths, is_cut & False)
    assert (found.mu, found.sigma) == pytest.approx((5.0, 0.4), rel=0.08)
    assert abs(naive.sigma / 0.4 - 1) > 0.15
    assert fit_log_t(np.array([300] * 8), np.zeros(8, bool)).mu == pytest.approx(np.log(300))


# ---------------------------------------------------------------- text models


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def order(model: TextModel, samples: Sequence[Samples]) -> float:
    means = [one.lengths.mean() for one in samples]
    return float(stats.kendalltau(model.predict(samples)[:, 0], means).statistic)


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_orders_new_prompts_by_length(loss: str) -> None:
    model = train(make_samples(range(240)), replace(TINY, loss=loss))
    new = make_samples(range(10_000, 10_100))
    assert order(model, new) > 0.65
    assert model.predict(new).shape == (100, 2 if loss in DISTRIBUTIONS else 1)
    if loss in (LOG, MEAN):
        figure = np.log if loss == LOG else np.asarray
        wanted = np.mean([figure(one.lengths).mean() for one in new])
        assert model.predict(new).mean() == pytest.approx(wanted, rel=0.05)
    if loss in DISTRIBUTIONS:
        assert np.exp(model.predict(new)[:, 1]).mean() == pytest.approx(0.17, abs=0.05)


def test_a_frozen_encoder_teaches_the_heads_alone() -> None:
    """Its vectors, not the prompts' tokens, tell the length."""
    samples, draw = make_samples(range(200)), np.random.default_rng(0)
    means = np.array([np.log(one.lengths).mean() for one in samples])
    vectors = {
        one.text: torch.tensor([mean - 5.4, *draw.normal(0, 0.3, 5)], dtype=torch.float32)
        for one, mean in zip(samples, means, strict=True)
    }
    hidden = [replace(one, prompt_ids=(1,)) for one in samples]
    model = train(hidden[:150], TINY, vectors)
    assert order(model, hidden[150:]) > 0.65
    assert not list(model.encoder.parameters())


def test_the_encoder_stays_as_it_is_in_the_second_stage() -> None:
    samples, short = make_samples(range(60)), replace(TINY, epochs=2)
    first, both = (train(samples, replace(short, head_epochs=n)).state_dict() for n in (0, 3))
    differing = {name for name in first if not torch.equal(first[name], both[name])}
    assert not [name for name in differing if name.startswith(("encoder.", "norm."))]


def test_prompts_are_read_alike_alone_and_among_others_and_long_ones_by_their_end() -> None:
    model = TextModel(TINY).eval()
    short, long = make_samples([1, 2])
    long = replace(long, prompt_ids=tuple(range(9000)))
    assert torch.allclose(model([short, long])[:1], model([short]), atol=1e-4)
    end = replace(long, prompt_ids=tuple(range(8968, 9000)))
    assert torch.allclose(model.encoder([long]), model.encoder([end]), atol=1e-5)


def test_the_same_seed_gives_the_same_model() -> None:
    short = replace(TINY, epochs=2, head_epochs=1)
    samples, state = make_samples(range(60)), torch.get_rng_state()
    first, second, other = (
        train(samples, replace(short, seed=seed)).predict(samples[:1]) for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).all()
    assert torch.equal(torch.get_rng_state(), state)


def test_the_loss_and_its_gradient_are_those_of_the_distribution() -> None:
    samples = [repeat([50, 60], 60), repeat([30], 60)]
    mu = torch.tensor([4.0, 3.0], requires_grad=True)
    log_sigma = torch.tensor([-1.0, -0.5], requires_grad=True)

    def compute(mu: np.ndarray, log_sigma: np.ndarray) -> float:
        first, second = (stats.t(3.5, m, np.exp(s)) for m, s in zip(mu, log_sigma, strict=True))
        ended, cut = first.logpdf(np.log(50)), first.logsf(np.log(60))
        return float(-((ended + cut) / 2 + second.logpdf(np.log(30))) / 2)

    loss = compute_nats(mu, log_sigma, samples)
    loss.backward()  # type: ignore[no-untyped-call]
    at = mu.detach().double().numpy(), log_sigma.detach().double().numpy()
    assert loss.item() == pytest.approx(compute(*at), rel=1e-5)
    for index, given in enumerate((mu, log_sigma)):
        for place in range(2):
            up, down = ([one.copy() for one in at] for _ in range(2))
            up[index][place] += 1e-5
            down[index][place] -= 1e-5
            slope = (compute(*up) - compute(*down)) / 2e-5
            assert given.grad is not None
            assert float(given.grad[place]) == pytest.approx(slope, rel=1e-3)


def test_the_rank_loss_is_the_likelihood_of_the_order() -> None:
    """Of three prompts the shortest is drawn first, then the shorter one of the others."""
    scores, tokens = torch.tensor([2.0, 0.5, 1.0]), torch.tensor([90.0, 10.0, 40.0])
    chances = np.exp([-0.5, -1.0, -2.0])
    by_hand = -np.log(chances[0] / chances.sum()) - np.log(chances[1] / chances[1:].sum())
    assert float(compute_list_loss(scores, tokens)) == pytest.approx(by_hand / 3, rel=1e-5)

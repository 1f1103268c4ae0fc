"""scripts.bench.lengths: what the studies of output lengths measure, and that models learn."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from scripts.bench.lengths import fits, prediction_error
from scripts.bench.lengths.accuracy import (
    Accuracy,
    Predict,
    find_median,
    measure,
    measure_explained,
)
from scripts.bench.lengths.text_model import (
    FITTED,
    LIKELIHOOD,
    SmallEncoder,
    TextModel,
    TextSettings,
    compute_nats,
    train,
)
from scripts.bench.mcts.point import Point
from scripts.lab.distributions import fit_log_t
from tests.support.length_rig import make_runs
from tests.support.tiny_embedder import write_embedder

RANDOM = np.random.default_rng(0)
SIZES = {"vocabulary": 16, "max_tokens": 32, "width": 32, "layers": 1, "attention_heads": 2}
STEPS = {"epochs": 12, "head_epochs": 6, "rate": 3e-3, "batch": 16}
TINY = TextSettings(**SIZES, **STEPS, head=(32, 32, 16), dropout=0.0)  # type: ignore[arg-type]


# ---------------------------------------------------------------- fits


def test_a_set_of_prompts_of_a_family_prefers_it() -> None:
    draw = np.random.default_rng(0)
    found = fits.study_set(list(np.rint(np.exp(draw.normal(5.0, 0.4, (12, 40))))))
    assert found["log_normal"]["passes"][0] == 1
    assert found["exponential"]["passes"][0] < 0.2
    errors = [found[name]["calibration_error"] for name in ("log_normal", "exponential")]
    assert errors[0] < min(0.06, errors[1])


def test_lengths_near_a_quantile_count_in_part() -> None:
    _, below = fits.measure_prompt("log_normal", np.array([10.0, 30.0, 20.0, 14.0]))
    middle = np.sqrt(10 * 20)  # the median of the fit to 10 and 20
    assert below[9] == pytest.approx((middle - 14 + 0.5) / 2)


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


def test_a_point_has_no_doubt() -> None:
    found = Point(9.0).log_survival(np.array([0.0, 8.0, 9.0, np.inf]))
    assert found.tolist() == [0, 0, -np.inf, -np.inf]


# ---------------------------------------------------------------- accuracy


def finish(name: str, tokens: Sequence[int]) -> FinishedOutputs:
    request = LengthRequest(pair="p", text=name, max_tokens=4096)
    return FinishedOutputs(request=request, lengths=OutputLengths.from_outputs(tokens))


def say(factor: float = 1.0, sigma: float = 0.2) -> Predict:
    return lambda request: LogT(float(np.log(factor * float(request.text))), sigma)


def draw(median: int) -> FinishedOutputs:
    drawn = np.exp(np.log(median) + 0.2 * RANDOM.standard_t(3.5, 16))
    return finish(str(median), [max(1, round(float(t))) for t in drawn])


RUNS = [draw(100 + 10 * i) for i in range(40)]


def test_the_truth_is_calibrated_and_in_order() -> None:
    found = measure(say(), RUNS)
    assert found.predicted == 40
    assert found.median_error < 0.1
    assert found.median_error_95[0] < found.median_error < found.median_error_95[1]
    assert found.tau > 0.8
    assert found.coverage == pytest.approx((0.5, 0.8, 0.9), abs=0.05)


def test_each_figure_tells_what_is_wrong() -> None:
    true, doubled, wide = (measure(one, RUNS) for one in (say(), say(2.0), say(sigma=0.6)))
    assert doubled.median_error == pytest.approx(1.0, abs=0.1)
    assert doubled.tau == true.tau
    assert doubled.log_score > wide.log_score > true.log_score
    assert doubled.pinball > wide.pinball > true.pinball
    assert wide.coverage[0] > 0.85
    nothing = measure(lambda request: None, RUNS)
    assert nothing.predicted == 0
    assert isnan(nothing.median_error)


def test_a_worked_score() -> None:
    lengths = OutputLengths.from_outputs([90, 110], [False, True])
    run = FinishedOutputs(request=LengthRequest(pair="p", max_tokens=9), lengths=lengths)
    student = stats.t(3.5, 4.6, 0.3)
    nats = -(student.logpdf(np.log(90)) - np.log(90) + student.logsf(np.log(110))) / 2
    assert measure(lambda request: LogT(4.6, 0.3), [run]).log_score == pytest.approx(nats)


def test_a_median_is_unknown_where_half_of_the_outputs_were_cut() -> None:
    assert find_median(OutputLengths.from_outputs([5, 7, 9], [False, False, True])) == 6
    assert find_median(OutputLengths.from_outputs([5, 9], [False, True])) is None


def test_the_truth_explains_all_and_another_prompts_little() -> None:
    draw = np.random.default_rng(1)
    true = {str(i): LogT(draw.uniform(4, 6), draw.uniform(0.1, 0.4)) for i in range(40)}
    shares = (np.arange(60) + 0.5) / 60
    finished = [
        finish(name, np.rint(one.inverse_survival(shares)).astype(int))
        for name, one in true.items()
    ]
    mu, sigma = measure_explained(lambda request: true[request.text], finished)
    assert mu > 0.98
    assert sigma > 0.95
    others = dict(zip(true, draw.permutation(list(true)), strict=True))
    assert max(measure_explained(lambda request: true[others[request.text]], finished)) < 0.2


# ---------------------------------------------------------------- the text model


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def errors_of(model: TextModel) -> Accuracy:
    return measure(model.predict, make_runs(range(10_000, 10_100)))


@pytest.mark.parametrize(("loss", "gain", "share"), [(LIKELIHOOD, 0.4, 0.5), (FITTED, 0.3, 0.6)])
def test_a_text_model_beats_one_distribution_for_all(loss: str, gain: float, share: float) -> None:
    runs = make_runs(range(240))
    constant = measure(prediction_error.fit_constant(runs), make_runs(range(10_000, 10_100)))
    found = errors_of(train(runs, replace(TINY, loss=loss)))
    assert found.log_score < constant.log_score - gain
    assert found.median_error < share * constant.median_error
    assert found.tau > 0.7
    if loss == LIKELIHOOD:
        assert found.coverage[1] == pytest.approx(0.8, abs=0.12)


def test_the_encoder_stays_as_it_is_in_the_second_stage() -> None:
    runs, short = make_runs(range(60)), replace(TINY, epochs=2)
    first, both = (train(runs, replace(short, head_epochs=n)).state_dict() for n in (0, 3))
    differing = {name for name in first if not torch.equal(first[name], both[name])}
    assert not [name for name in differing if name.startswith(("encoder.", "norm."))]


def test_prompts_are_read_alike_alone_and_among_others_and_long_ones_by_their_end() -> None:
    model = TextModel(TINY).eval()
    short, long = (run.request for run in make_runs([1, 2]))
    long = replace(long, prompt_ids=tuple(range(9000)))
    assert torch.allclose(model([short, long])[:1], model([short]), atol=1e-4)
    assert SmallEncoder(TINY).read(long) == [1, *(2 + token % 16 for token in range(8968, 9000))]


def test_a_pretrained_encoder_reads_the_text(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    model = TextModel(replace(TINY, checkpoint=tmp_path))
    hello = LengthRequest(pair="p", prompt_ids=(), text="hello", max_tokens=9)
    assert isinstance(model.predict(hello), LogT)


def test_the_same_seed_gives_the_same_model() -> None:
    short = replace(TINY, epochs=2, head_epochs=1)
    runs, state = make_runs(range(60)), torch.get_rng_state()
    first, second, other = (train(runs, replace(short, seed=seed)) for seed in (0, 0, 1))
    (one,) = make_runs([10_000])
    assert first.predict(one.request) == second.predict(one.request)
    assert first.predict(one.request) != other.predict(one.request)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_loss_and_its_gradient_are_those_of_the_distribution() -> None:
    whole = OutputLengths.from_outputs([50, 60], [False, True])
    part = OutputLengths(tokens=(30, 10), is_censored=(False, True), weights=(2.0, -1.0))
    mu = torch.tensor([4.0, 3.0], requires_grad=True)
    log_sigma = torch.tensor([-1.0, -0.5], requires_grad=True)

    def compute(mu: np.ndarray, log_sigma: np.ndarray) -> float:
        first, second = (stats.t(3.5, m, np.exp(s)) for m, s in zip(mu, log_sigma, strict=True))
        ended, cut = first.logpdf(np.log(50)), first.logsf(np.log(60))
        parted = 2 * second.logpdf(np.log(30)) - second.logsf(np.log(10))
        return float(-((ended + cut) / 2 + parted) / 2)

    loss = compute_nats(mu, log_sigma, [whole, part])
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


def test_every_script_says_how_it_is_called() -> None:
    for script in (fits, prediction_error):
        assert f"python -m {script.__name__}" in (script.__doc__ or "")

"""What the history predictor learns and forgets."""

from collections.abc import Callable, Sequence
from math import exp
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from flashedge.scheduling.lengths import history
from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.lengths.history import HistoryPredictor
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from scripts.lab.distributions import fit_log_t
from scripts.lab.statistics import kendall


def ask(text: str = "new", *, kind: str = "beam", tokens: int = 64) -> LengthRequest:
    return LengthRequest(pair="p", kind=kind, text=text, prompt_tokens=tokens, max_tokens=4096)


def end(request: LengthRequest, lengths: Sequence[int], *, cut: bool = False) -> FinishedOutputs:
    outputs = OutputLengths.from_outputs(lengths, [cut] * len(lengths))
    return FinishedOutputs(request=request, lengths=outputs)


def make_run(number: int, *, factor: float = 1.0, steps: int | None = None) -> FinishedOutputs:
    """A run of 8 paths. A prompt with more steps has more tokens and longer paths."""
    random = Random(number)
    count = random.randint(2, 10) if steps is None else steps
    middle = 4.5 + 0.15 * count + random.gauss(0, 0.15)
    lengths = [max(1, round(factor * exp(random.gauss(middle, 0.15)))) for _ in range(8)]
    return end(ask(f"{number}", tokens=20 + 10 * count), lengths)


def learn(predictor: HistoryPredictor, runs: Sequence[FinishedOutputs]) -> HistoryPredictor:
    for run in runs:
        predictor.learn(run)
    return predictor


class Errors(NamedTuple):
    """Of predictions for runs none of whose outputs was cut."""

    median_error: float
    log_score: float
    """Nats of one output. Lower is better."""
    tau: float
    covered: float
    """Share of the outputs in the middle 80 % of their distributions."""


def measure(
    predict: Callable[[LengthRequest], LogT | None], runs: Sequence[FinishedOutputs]
) -> Errors:
    said = [found for run in runs if (found := predict(run.request)) is not None]
    tokens = np.array([run.lengths.tokens for run in runs], dtype=np.float64)
    medians = np.median(tokens, axis=1)
    mu, sigma = (np.array([getattr(one, name) for one in said]) for name in ("mu", "sigma"))
    z = (np.log(tokens) - mu[:, None]) / sigma[:, None]
    density = stats.t.logpdf(z, said[0].nu) - np.log(sigma[:, None]) - np.log(tokens)
    return Errors(
        median_error=float(np.mean(np.abs(np.exp(mu) / medians - 1))),
        log_score=-float(density.mean()),
        tau=kendall(mu.tolist(), medians.tolist()),
        covered=float((np.abs(z) <= stats.t.ppf(0.9, said[0].nu)).mean()),
    )


def middle(distribution: LogT) -> float:
    return exp(distribution.mu)


def find_ratio(distribution: LogT) -> float:
    """How many times the 10 % quantile the 90 % quantile is."""
    high, low = distribution.inverse_survival(np.array([0.1, 0.9])).tolist()
    return float(high / low)


def test_one_run_is_enough_to_predict_and_leaves_doubt() -> None:
    assert HistoryPredictor().predict(ask()) is None
    predictor = learn(HistoryPredictor(), [end(ask("a"), [200, 210, 190, 205])])
    found = predictor.predict(ask("b"))
    assert 120 < middle(found) < 350
    assert find_ratio(found) > 3


def test_errors_fall_with_runs_and_end_below_the_constants() -> None:
    held_out = [make_run(10_000 + i) for i in range(150)]
    runs = [make_run(i) for i in range(400)]
    scores = [measure(learn(HistoryPredictor(), runs[:k]).predict, held_out) for k in (5, 50, 400)]
    lengths = np.concatenate([run.lengths.tokens for run in runs])
    one = fit_log_t(lengths, np.zeros(len(lengths), bool))
    alike = measure(lambda request: one, held_out)
    assert scores[0].log_score > scores[1].log_score > scores[2].log_score
    assert scores[2].log_score < alike.log_score - 0.2
    assert scores[2].median_error < 0.75 * alike.median_error
    assert scores[2].tau > 0.5
    assert scores[2].covered == pytest.approx(0.8, abs=0.12)


def test_a_prompt_that_ran_before_is_known_by_itself() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i, steps=5) for i in range(60)])
    odd = ask("odd", tokens=70)
    before = predictor.predict(odd)
    predictor.learn(end(odd, [900, 950, 1000, 880, 910, 930, 940, 990]))
    after = predictor.predict(odd)
    assert middle(before) < 350 < 750 < middle(after)
    assert middle(predictor.predict(ask("another", tokens=70))) < 350
    assert find_ratio(after) < find_ratio(before)


def test_a_run_with_many_outputs_counts_once_for_other_prompts() -> None:
    runs = [end(ask(f"a{i}"), [100]) for i in range(30)]
    predictor = learn(HistoryPredictor(), [*runs, end(ask("wide"), [2000] * 256)])
    assert middle(predictor.predict(ask("new"))) < 150


def test_strategies_are_told_apart_and_a_new_one_is_predicted_from_all() -> None:
    predictor = HistoryPredictor()
    for i in range(40):
        predictor.learn(end(ask(f"a{i}"), [100, 110]))
        predictor.learn(end(ask(f"b{i}", kind="plain"), [400, 420]))
    assert middle(predictor.predict(ask())) == pytest.approx(105, rel=0.1)
    assert middle(predictor.predict(ask(kind="plain"))) == pytest.approx(410, rel=0.1)
    assert 105 < middle(predictor.predict(ask(kind="mcts"))) < 410


def test_a_prompt_of_unknown_length_is_predicted_from_its_strategy() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i) for i in range(80)])
    expected = pytest.approx(exp(4.5 + 0.15 * 6), rel=0.2)
    assert middle(predictor.predict(ask(tokens=0))) == expected


def test_cut_outputs_are_lower_bounds() -> None:
    honest, naive = HistoryPredictor(), HistoryPredictor()
    random = Random(0)
    for i in range(150):
        drawn = [round(exp(random.gauss(6.0, 0.3))) for _ in range(8)]
        kept = [min(tokens, 400) for tokens in drawn]
        outputs = OutputLengths.from_outputs(kept, [tokens > 400 for tokens in drawn])
        honest.learn(FinishedOutputs(request=ask(f"{i}"), lengths=outputs))
        naive.learn(end(ask(f"{i}"), kept))
    assert middle(honest.predict(ask())) == pytest.approx(exp(6.0), rel=0.06)
    assert middle(naive.predict(ask())) < 0.96 * exp(6.0)


def test_a_prompt_whose_paths_were_all_cut_is_long() -> None:
    predictor = learn(HistoryPredictor(), [end(ask(f"{i}"), [100, 120, 110]) for i in range(20)])
    predictor.learn(end(ask("endless"), [1000] * 8, cut=True))
    assert middle(predictor.predict(ask("endless"))) > 350
    assert middle(predictor.predict(ask("other"))) < 160


def test_what_paths_of_a_tree_share_counts_once() -> None:
    """Two paths part at 60 tokens; one is pruned at 80, the other ends at 100. Without the prunings
    the known lengths would be those of the shortest paths."""
    told = {"is_censored": (False, True, True), "weights": (1.0, -1.0, 1.0)}
    lengths = OutputLengths(tokens=(100, 60, 80), **told)
    runs = [FinishedOutputs(request=ask(f"{i}"), lengths=lengths) for i in range(60)]
    found = learn(HistoryPredictor(), runs).predict(ask())
    assert 95 < middle(found) < 160
    assert find_ratio(found) < 4


def test_it_follows_a_workload_that_drifts() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i) for i in range(400)])
    longer = [make_run(20_000 + i, factor=2.0) for i in range(100)]
    at_once = measure(predictor.predict, longer).median_error
    learn(predictor, [make_run(30_000 + i, factor=2.0) for i in range(30)])
    soon = measure(predictor.predict, longer).median_error
    more = [make_run(40_000 + i, factor=2.0) for i in range(600)]
    later = measure(learn(predictor, more).predict, longer).median_error
    fresh = measure(learn(HistoryPredictor(), more).predict, longer).median_error
    assert at_once > 0.4
    assert soon < 0.6 * at_once
    assert later < 1.25 * fresh


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_RUNS", 20)
    monkeypatch.setattr(history, "KEPT_PROMPTS", 100)
    predictor = HistoryPredictor()
    for i in range(300):
        predictor.learn(end(ask(f"{i}", kind=f"kind {i % 3}"), [100 + i]))
    assert len(predictor._prompts) == 100
    assert [len(runs) for runs in predictor._runs.values()] == [20] * 3
    assert middle(predictor.predict(ask(kind="kind 0"))) > 330

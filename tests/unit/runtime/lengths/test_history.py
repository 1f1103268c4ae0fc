"""What the history predictor learns, forgets and says."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random

import numpy as np
import pytest

from flashedge.runtime.lengths.accuracy import measure
from flashedge.runtime.lengths.constant import ConstantPredictor
from flashedge.runtime.lengths.history.cell import FADED, Cell
from flashedge.runtime.lengths.history.drift import Drift
from flashedge.runtime.lengths.history.predictor import HistoryPredictor
from flashedge.runtime.lengths.history.settings import HistorySettings
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest


def ask(
    text: str = "new",
    *,
    pair: str = "p",
    kind: str = "beam",
    tokens: int | None = 64,
    client: str = "",
) -> LengthRequest:
    return LengthRequest(
        pair=pair, kind=kind, text=text, prompt_tokens=tokens, max_tokens=4096, client=client
    )


def end(request: LengthRequest, lengths: Sequence[int], *, cut: bool = False) -> FinishedOutputs:
    outputs = OutputLengths.from_outputs(lengths, [cut] * len(lengths))
    return FinishedOutputs(request=request, lengths=outputs)


def make_run(
    number: int, *, factor: float = 1.0, steps: int | None = None, kind: str = "beam"
) -> FinishedOutputs:
    """A run of 8 paths. A prompt with more steps has more tokens and longer paths."""
    random = Random(number)
    count = random.randint(2, 10) if steps is None else steps
    middle = 4.5 + 0.15 * count + random.gauss(0, 0.15)
    lengths = [max(1, round(factor * exp(random.gauss(middle, 0.15)))) for _ in range(8)]
    return end(ask(f"{kind} {number}", tokens=20 + 10 * count, kind=kind), lengths)


def learn(predictor: HistoryPredictor, runs: Sequence[FinishedOutputs]) -> HistoryPredictor:
    for run in runs:
        predictor.learn(run)
    return predictor


def predict(predictor: HistoryPredictor, request: LengthRequest) -> LengthDistribution:
    (found,) = predictor.predict([request])
    assert found is not None
    return found


def middle(distribution: LengthDistribution) -> float:
    return float(distribution.quantile(np.array(0.5)))


# ---------------------------------------------------------------- learning


def test_it_knows_nothing_before_the_first_run() -> None:
    predictor = HistoryPredictor()
    assert predictor.predict([ask(), ask("other")]) == [None, None]
    assert "no run has ended yet" in predictor.explain(ask())


def test_one_run_is_enough_to_predict_and_leaves_doubt() -> None:
    predictor = learn(HistoryPredictor(), [end(ask("a"), [200, 210, 190, 205])])
    found = predict(predictor, ask("b"))
    assert 120 < middle(found) < 350
    low, high = found.quantile(np.array([0.1, 0.9]))
    assert high / low > 3


def test_errors_fall_with_runs_and_end_below_the_constants() -> None:
    held_out = [make_run(10_000 + i) for i in range(150)]
    runs = [make_run(i) for i in range(400)]
    scores = [measure(learn(HistoryPredictor(), runs[:k]), held_out) for k in (5, 50, 400)]
    constant = ConstantPredictor()
    for run in runs:
        constant.learn(run)
    alike = measure(constant, held_out)
    assert scores[0].log_score > scores[1].log_score > scores[2].log_score
    assert scores[2].log_score < alike.log_score - 0.2
    assert scores[2].median_error < 0.75 * alike.median_error
    assert scores[2].tau > 0.5
    assert scores[2].coverage[1] == pytest.approx(0.8, abs=0.12)


def test_a_prompt_that_ran_before_is_known_by_itself() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i, steps=5) for i in range(60)])
    odd = ask("odd", tokens=70)
    before = predict(predictor, odd)
    predictor.learn(end(odd, [900, 950, 1000, 880, 910, 930, 940, 990]))
    after = predict(predictor, odd)
    assert middle(before) < 350
    assert middle(after) > 750
    assert middle(predict(predictor, ask("another", tokens=70))) < 350
    narrow, wide = after.quantile(np.array([0.1, 0.9])), before.quantile(np.array([0.1, 0.9]))
    assert narrow[1] / narrow[0] < wide[1] / wide[0]


def test_a_run_with_many_outputs_counts_once_in_its_group() -> None:
    runs = [end(ask(f"a{i}"), [100]) for i in range(30)]
    predictor = learn(HistoryPredictor(), [*runs, end(ask("wide"), [2000] * 256)])
    assert middle(predict(predictor, ask("new"))) < 150


def test_strategies_pairs_and_clients_are_told_apart() -> None:
    predictor = HistoryPredictor()
    for i in range(40):
        predictor.learn(end(ask(f"a{i}"), [100, 110]))
        predictor.learn(end(ask(f"b{i}", kind="plain"), [400, 420]))
        predictor.learn(end(ask(f"c{i}", pair="q"), [1500, 1600]))
        predictor.learn(end(ask(f"d{i}", client="agent"), [60, 64]))
    assert middle(predict(predictor, ask(kind="plain"))) == pytest.approx(410, rel=0.1)
    assert middle(predict(predictor, ask(pair="q"))) == pytest.approx(1550, rel=0.1)
    assert middle(predict(predictor, ask(client="agent"))) == pytest.approx(62, rel=0.15)
    assert 62 < middle(predict(predictor, ask())) <= 110
    unknown = middle(predict(predictor, ask(pair="r")))
    assert 62 < unknown < 1550


def test_a_prompt_of_unknown_length_is_predicted_from_its_strategy() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i) for i in range(80)])
    found = predict(predictor, ask(tokens=None))
    assert middle(found) == pytest.approx(exp(4.5 + 0.15 * 6), rel=0.2)
    predictor.learn(end(ask("x", tokens=None, client="c"), [50, 60]))
    assert middle(predict(predictor, ask(tokens=None, client="c"))) < middle(found)


# ---------------------------------------------------------------- cuts


def test_cut_outputs_are_lower_bounds() -> None:
    honest, naive = HistoryPredictor(), HistoryPredictor()
    random = Random(0)
    for i in range(150):
        drawn = [round(exp(random.gauss(6.0, 0.3))) for _ in range(8)]
        kept, cut = [min(t, 400) for t in drawn], [t > 400 for t in drawn]
        outputs = OutputLengths.from_outputs(kept, cut)
        honest.learn(FinishedOutputs(request=ask(f"{i}"), lengths=outputs))
        naive.learn(end(ask(f"{i}"), kept))
    assert middle(predict(honest, ask())) == pytest.approx(exp(6.0), rel=0.06)
    assert middle(predict(naive, ask())) < 0.96 * exp(6.0)


def test_a_prompt_whose_paths_were_all_cut_is_long() -> None:
    predictor = learn(HistoryPredictor(), [end(ask(f"{i}"), [100, 120, 110]) for i in range(20)])
    predictor.learn(end(ask("endless"), [1000] * 8, cut=True))
    assert middle(predict(predictor, ask("endless"))) > 350
    assert middle(predict(predictor, ask("other"))) < 160


# ---------------------------------------------------------------- drift


def test_it_follows_a_workload_that_drifts() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i) for i in range(400)])
    longer = [make_run(20_000 + i, factor=2.0) for i in range(100)]
    at_once = measure(predictor, longer).median_error
    learn(predictor, [make_run(30_000 + i, factor=2.0) for i in range(30)])
    soon = measure(predictor, longer).median_error
    learn(predictor, [make_run(40_000 + i, factor=2.0) for i in range(600)])
    later = measure(predictor, longer).median_error
    fresh = measure(
        learn(HistoryPredictor(), [make_run(40_000 + i, factor=2.0) for i in range(600)]), longer
    ).median_error
    assert at_once > 0.4
    assert soon < 0.6 * at_once
    assert later < 1.25 * fresh


def test_a_steady_workload_is_not_corrected() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i, steps=6) for i in range(300)])
    assert "times as long" not in predictor.explain(ask(tokens=80))


def test_a_drift_is_used_as_far_as_it_is_more_than_chance() -> None:
    drift = Drift()
    assert drift.find_correction(0.3) == 0
    drift.add(0.3)
    assert drift.find_correction(0.3) == 0
    for _ in range(40):
        drift.add(0.7)
    assert 0.6 < drift.find_correction(0.3) < 0.7
    for _ in range(60):
        drift.add(0.0)
    assert drift.find_correction(0.3) == 0


# ---------------------------------------------------------------- bounds


def test_its_memory_is_bounded() -> None:
    settings = HistorySettings(max_cells=40, max_prompts=100)
    predictor = HistoryPredictor(settings)
    sizes = []
    for i in range(1500):
        request = ask(f"{i}", kind=f"kind {i % 30}", tokens=20 + i % 400, client=f"client {i % 50}")
        random = Random(i)
        predictor.learn(end(request, [round(exp(random.gauss(5, 1))) + 1 for _ in range(4)]))
        sizes.append(predictor.num_bins)
    assert predictor.num_prompts == 100
    assert len(predictor.list_groups()) <= 40
    assert max(sizes[700:]) <= 1.5 * max(sizes[:700])
    assert predictor.predict([ask("other", kind="kind 3")])[0] is not None


def test_a_cell_forgets_what_no_longer_counts() -> None:
    cell = Cell()
    cell.add(OutputLengths.from_outputs([100]), weight=1.0, share=1.0, keep=1.0)
    for _ in range(20):
        cell.add(OutputLengths.from_outputs([900]), weight=1.0, share=1.0, keep=0.5)
    assert cell.num_bins == 1
    assert cell.runs == pytest.approx(2.0, rel=1e-3)
    assert FADED > 0.5**14


def test_equal_runs_in_equal_order_give_equal_predictions() -> None:
    runs = [make_run(i) for i in range(60)]
    first, second = (learn(HistoryPredictor(), runs) for _ in range(2))
    requests = [make_run(500 + i).request for i in range(20)]
    assert first.predict(requests) == second.predict(requests)
    assert first.predict(requests[:1]) == second.predict(requests)[:1]
    assert first.explain(requests[0]) == second.explain(requests[0])


# ---------------------------------------------------------------- telling


def test_it_says_why_in_plain_words() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i) for i in range(100)])
    new = predictor.explain(ask(tokens=80)).splitlines()
    assert "tokens at the median" in new[0]
    assert new[1] == "the prompt is new; its group says so:"
    assert "beam on p, prompts of about 76 to" in new[2]
    assert "beam on p (" in new[3]
    assert "all runs (" in new[4]
    seen = predictor.explain(make_run(99).request)
    assert "1 run of this very prompt" in seen


def test_groups_are_listed_from_all_runs_to_single_sizes() -> None:
    predictor = learn(HistoryPredictor(), [make_run(i) for i in range(50)])
    groups = predictor.list_groups()
    assert [group.words for group in groups[:2]] == ["all runs", "beam on p"]
    assert groups[0].runs == pytest.approx(50, rel=0.1)
    middles = [group.fit.mu for group in groups[2:]]
    assert middles[0] < middles[-1]

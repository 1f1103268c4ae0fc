"""Orders of requests with real lengths: an engine counted by hand, and what predictions know."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flashedge.files.journal import Journal
from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs.active import ActivePrograms, Rules
from flashedge.scheduling.programs.policies import LeastWork
from flashedge.scheduling.programs.program import Member
from scripts.bench.lengths.samples import Samples
from scripts.bench.lengths.text_model import LOSSES, TextSettings
from scripts.bench.scheduling import real_lengths
from scripts.bench.scheduling.real_lengths import (
    BATCH,
    ESCALATE_S,
    ORDERS,
    STEP_S,
    TIE,
    Escalated,
    Step,
    Study,
    Work,
    _score,
    describe,
    estimate_work,
    fit_half,
    judge,
    measure_orders,
    predict_by_history,
    serve_in_steps,
    summarize,
    weigh_by_inverse,
)
from scripts.bench.smoke import SMALL_SAMPLES

DRAW = np.random.default_rng(0)
BOARD = Rules(
    policy=TIE, is_gang=False, is_fair=False, ranks_kinds=False, escalate_after_s=ESCALATE_S
)


def make_samples(number: int, middle: float, spread: float = 0.1) -> Samples:
    tokens = np.rint(np.exp(np.log(middle) + spread * DRAW.standard_normal(8))).astype(int)
    return Samples(f"problem {number}", (0,) * 50, tuple(tokens.tolist()), 4_096)


SAMPLES = [make_samples(at, 100.0 + 40 * (at % 10)) for at in range(40)]
LEARNED, ASKED = SAMPLES[:20], SAMPLES[20:]


def serve(tokens: list[int], arrived: list[int], batch: int) -> list[float]:
    lengths = np.array(tokens, dtype=np.float64)
    served = serve_in_steps(
        lengths, STEP_S * np.array(arrived), lambda waiting, _: lengths[waiting], batch
    )
    return np.rint(served.finished_s / STEP_S).tolist()


def test_the_shortest_that_waits_is_served_next() -> None:
    assert serve([5, 3, 1], [0, 0, 0], 1) == [9, 4, 1]
    assert serve([5, 3, 1], [0, 1, 1], 1) == [5, 9, 6], "what runs is not interrupted"
    assert serve([5, 3, 1], [0, 0, 0], 2) == [6, 3, 1]
    assert serve([2, 2], [0, 9], 1) == [2, 11], "an idle engine waits for the next arrival"
    assert serve([4, 4], [0, 0], 1) == [4, 8], "equal ones by arrival"


def test_predictions_know_what_they_say() -> None:
    """Prompts of one length tell nothing; their other answers tell the order."""
    new = predict_by_history(LEARNED, ASKED)
    assert np.ptp([one.mu for one in new]) < 1e-9
    seen = predict_by_history([*LEARNED, *(one.take(0) for one in ASKED)], ASKED)
    half, oracle = fit_half(ASKED, "half"), [one.fitted for one in ASKED]
    assert judge(new, ASKED)["r2_mu"] < 0.1
    for fits in (seen, half, fit_half(ASKED, "half_normal"), fit_half(ASKED, "half_free")):
        found = judge(fits, ASKED)
        assert found["r2_mu"] > 0.9
        assert found["tau"] > 0.7
    assert judge(oracle, ASKED)["r2_log_sigma"] == 1


def test_a_log_normal_is_fitted_as_one() -> None:
    (one,) = fit_half(ASKED[:1], "half_normal")
    logs = np.log(ASKED[0].take(0).lengths)
    assert (one.mu, one.sigma) == pytest.approx((logs.mean(), logs.std()), rel=1e-3)


def test_orders_are_compared_on_the_same_requests() -> None:
    half = estimate_work(fit_half(ASKED, "half"), 4_096)
    said = {"half": half, "oracle": half}
    cells = [measure_orders(ASKED, said, [2.0], 200, 4, 0)] * 2
    names = {name for name, (source, _) in ORDERS.items() if source in {*said, "lengths"}}
    assert set(cells[0]["2"]) == set(cells[0][BATCH]) == names
    found = summarize(cells)["2"]
    gain = cells[0]["2"]["fcfs"]["latency"] / cells[0]["2"]["half: shortest"]["latency"]
    assert found["half: shortest over fcfs"]["latency"]["value"] == pytest.approx(gain, rel=1e-3)
    assert gain > 1.2, "shorter answers are known, and first"
    assert found["half: tie over half: shortest"]["latency"]["value"] == pytest.approx(1, abs=0.03)
    assert list(summarize(cells)[BATCH]["half: shortest over fcfs"]) == ["to_30_percent"]


def test_a_batch_is_measured_by_its_first_third() -> None:
    served = serve_in_steps(
        np.arange(1.0, 11.0), np.zeros(10), lambda waiting, _: waiting.astype(float), 10
    )
    assert describe(served)["to_30_percent"] == pytest.approx(3 * STEP_S)


def test_an_order_is_that_of_the_daemons_board() -> None:
    """The study scores arrays, the daemon a board of programs. Both put first what has waited for
    too long."""
    fits = [LogT(5 + 0.5 * DRAW.standard_normal(), 0.1 + 0.5 * DRAW.random()) for _ in range(200)]
    arrived = np.sort(DRAW.random(200)) * 100.0
    score = partial(_score, Escalated(TIE), estimate_work(fits, 2048), arrived, 64)
    board = ActivePrograms(BOARD)
    for n, one in enumerate(fits):
        member = Member(max_tokens=2048, lengths=one)
        board.join(f"{n:03}", member, f"{n:03}", "", float(arrived[n]))
    ours = np.argsort(score(np.arange(200), 100.0), kind="stable")
    assert [f"{n:03}" for n in ours] == [program.key for program in board.order(100.0, 64)]
    late = int((arrived <= 100 - ESCALATE_S).sum())
    assert ours[:late].tolist() == list(range(late))


def test_per_token_order_of_narrow_lengths_is_that_of_medians() -> None:
    fits = [LogT(mu, 0.01) for mu in np.linspace(4, 6, 9)]
    assert np.allclose(np.log(weigh_by_inverse(fits, 10**9)), 2 * np.linspace(4, 6, 9), rtol=0.02)


def test_a_fixed_weight_counts_the_tail() -> None:
    work = Work(np.array([100.0, 110.0]), np.array([200.0, 120.0]))
    scores = [
        _score(LeastWork(tail_weight=w), work, np.zeros(2), 8, np.array([0, 1]), 1.0)
        for w in (0.0, 0.5)
    ]
    assert [int(np.argmin(one)) for one in scores] == [0, 1]


def test_a_ratio_above_one_means_that_ours_is_lower() -> None:
    """Also of the 99th percentile: 0.4 means one 2.5 times as long."""
    cells = {"1.5": {"shortest": {"p99": 5.0}, "fcfs": {"p99": 2.0}}}
    for load in cells.values():
        for cell in load.values():
            cell |= {"latency": 1.0, "per_token": 1.0}
    found = summarize([cells])["1.5"]["shortest over fcfs"]
    assert found["p99"]["value"] == 0.4


class Trained:
    """A model that says the number of its loss, and the seed, of every prompt."""

    calls: ClassVar[list[tuple[str, int, list[str]]]] = []

    def __init__(self, samples: Sequence[Samples], settings: TextSettings, _: object) -> None:
        self.loss = settings.loss
        self.calls.append((settings.loss, settings.seed, [one.text for one in samples]))

    def predict(self, samples: Sequence[Samples]) -> np.ndarray:
        return np.array([[5.0 + LOSSES.index(self.loss) + at, -1.0] for at in range(len(samples))])


def test_a_study_learns_from_two_thirds_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"problem": one.text, "lens": one.tokens} for one in SAMPLES[:12]]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    given = argparse.Namespace(
        **{"encoder": SMALL_SAMPLES["tokenizer"], "prompts": 99, "loss": "fitted", "rates": [2.0]},
        **{"requests": 30, "batch": 4, "seeds": 1, "splits": 2},
    )
    monkeypatch.setattr(real_lengths, "LEAST_PROMPTS", 12)
    monkeypatch.setattr(real_lengths, "train", Trained)
    monkeypatch.setattr(real_lengths, "_keep_vectors", lambda *_: {})

    def run() -> dict[str, Any]:
        parse = lambda row: Step(**row)  # noqa: E731
        file = tmp_path / "journal"
        with Journal[Any, Step](file, {}, parse, key=lambda one: (one.file, one.name)) as kept:
            study = Study(path, given, kept)
            said, good = study.predict()
            assert (said["text"].expected == said["frozen, fitted"].expected).all(), "by --loss"
            assert (said["text"].expected != said["frozen, likelihood"].expected).any()
            assert "tau" not in good["one for all"]
            return study.run()

    found = run()
    calls = list(Trained.calls)
    texts = [one.text for one in SAMPLES[:12]]
    assert [call[:2] for call in calls] == [(loss, n) for n in range(3) for loss in LOSSES]
    assert calls[0][2] == texts[:8]
    assert len({tuple(call[2]) for call in calls}) == 3
    assert all(len({*call[2]} & {*texts}) == 8 for call in calls)
    json.dumps(found, allow_nan=False)
    assert json.dumps(run()) == json.dumps(found)
    assert Trained.calls == calls, "nothing is trained twice"

"""Orders of requests with real lengths: an engine counted by hand, and what predictors know."""

from dataclasses import replace

import numpy as np
import pytest

from scripts.bench.lengths.workload import Samples
from scripts.bench.scheduling.real_lengths import (
    POLICIES,
    STEP_S,
    measure,
    predict_lengths,
    serve_in_steps,
    summarize,
)
from scripts.bench.scheduling.request_orders import FixedOrder, RequestLoad, Rivals

DRAW = np.random.default_rng(0)


def make_samples(number: int, middle: float) -> Samples:
    tokens = np.rint(np.exp(np.log(middle) + 0.1 * DRAW.standard_normal(8))).astype(int)
    return Samples(f"problem {number}", (0,) * 50, tuple(tokens.tolist()))


SAMPLES = [make_samples(at, 100.0 + 40 * (at % 10)) for at in range(40)]


@pytest.fixture(scope="module")
def load() -> RequestLoad:
    return predict_lengths(SAMPLES, "seen").draw_load(300, 1)


def serve(load: RequestLoad, tokens: list[int], arrived: list[int], batch: int) -> list[float]:
    few = replace(load, output_tokens=np.array(tokens), mu=load.mu[: len(tokens)])
    order = FixedOrder(scores=np.array(tokens, dtype=np.float64))
    served = serve_in_steps(few, STEP_S * np.array(arrived), order, batch)
    return np.rint(served.finished_s / STEP_S).tolist()


def test_the_shortest_that_waits_is_served_next(load: RequestLoad) -> None:
    assert serve(load, [5, 3, 1], [0, 0, 0], 1) == [9, 4, 1]
    assert serve(load, [5, 3, 1], [0, 1, 1], 1) == [5, 9, 6], "what runs is not interrupted"
    assert serve(load, [5, 3, 1], [0, 0, 0], 2) == [6, 3, 1]
    assert serve(load, [2, 2], [0, 9], 1) == [2, 11], "an idle engine waits for the next arrival"


def test_each_predictor_knows_what_it_says(load: RequestLoad) -> None:
    """Prompts of one length tell nothing; their own samples and the truth tell the order."""
    said = {}
    for name in ("history", "seen", "true"):
        known = predict_lengths(SAMPLES, name)
        assert known.predicted is not None
        said[name] = known.predicted[0]
        assert [len(own) for own in known.answers] == [4] * 20
    assert np.ptp(said["history"]) < 1e-9
    assert np.corrcoef(said["seen"], known.mu)[0, 1] > 0.95
    assert (said["true"] == known.mu).all()
    assert predict_lengths(SAMPLES, "paper").predicted is None
    assert (Rivals(load).mu == load.predicted[0]).all()  # type: ignore[index]


def test_orders_are_compared_on_the_same_requests(load: RequestLoad) -> None:
    cells = [measure(load, [2.0], 4)[2.0]] * 2
    assert set(cells[0]) == set(POLICIES)
    found = summarize(cells)["latency"]
    gain = cells[0]["fcfs"]["latency"] / cells[0]["sept"]["latency"]
    assert found["sept over fcfs"]["value"] == pytest.approx(gain, rel=1e-3)
    assert gain > 1.2, "shorter answers are known, and first"
    assert found["tie over sept"]["value"] == pytest.approx(1, abs=0.03)

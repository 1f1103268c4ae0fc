"""The scheduling studies at a tiny size: paired, complete, and the choice of a decay."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from scripts.bench.scheduling import decay, policies
from scripts.bench.scheduling.workloads import WORKLOADS, build_load
from scripts.lab.benchmark.requests.predictions import PAPER, Quality


def test_all_policies_get_the_same_requests() -> None:
    load = build_load("cv 1.09", 60, seed=3)
    slow, fast = load.build_case(0.5), load.build_case(2.0)
    assert slow.arrived_s == pytest.approx(4 * fast.arrived_s)
    assert (load.build_case(math.inf).arrived_s == 0).all()
    burst = build_load("burst", 200, seed=3).build_case(0.7)
    assert 100 < len(burst) <= 200


def test_the_policies_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(policies, "OUTPUT", tmp_path)
    names = ["fcfs", "ssjf", "ltr", "tie", "oracle_length"]
    by_seed = {
        seed: policies.run_task(400, (0.3, 3.0), names, PAPER, ("cv 1.09", seed))
        for seed in range(3)
    }
    found = policies.summarize(by_seed)
    assert list(found) == ["0.3", "3", "batch"]
    idle, busy = found["0.3"]["policies"], found["3"]["policies"]
    assert idle["tie"]["per_token_s_over_fcfs"]["value"] == pytest.approx(1.0, abs=0.05)
    assert busy["oracle_length"]["per_token_s_over_fcfs"]["low"] > 1.0
    assert busy["fcfs"]["per_token_s_over_fcfs"] == {
        "value": 1.0,
        "low": 1.0,
        "high": 1.0,
        "seeds": 3,
    }
    assert found["3"]["best_point"]["per_token_s"] in ("ssjf", "ltr")
    assert busy["oracle_length"]["order_tau"]["value"] > busy["tie"]["order_tau"]["value"]
    batch = found["batch"]["policies"]["oracle_length"]
    assert batch["time_to_30_percent_s_over_fcfs"]["value"] > 1.0
    page = policies.print_tables("cv 1.09", by_seed[0]["about"], found)
    assert "| oracle_length |" in page
    assert json.dumps(by_seed[0]["about"]) in page


def test_predictions_that_explain_less_order_the_same_requests_worse() -> None:
    def measure_tau(quality: Quality) -> float:
        rows = policies.run_task(400, (3.0,), ["fcfs", "ssjf"], quality, ("cv 0.5", 1))
        return rows["3"]["ssjf"]["order_tau"]

    assert measure_tau(Quality(mu=0.2, sigma=0.1)) < measure_tau(PAPER) - 0.1


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_every_workload_can_be_built(name: str) -> None:
    load = build_load(name, 40, seed=1)
    assert len(load.prompts) == 40
    assert load.capacity > 0
    assert load.prompts.dispersion.within_cv > 0


def test_a_decay_is_chosen_among_those_that_cost_little() -> None:
    def cell(latency: float, wait: float) -> dict[str, dict[str, float]]:
        figures = {"per_token_s": latency, "latency_s": latency}
        return {"1": {**figures, "longest_wait_s": wait, "p99_wait_s": wait}}

    cells = {str(rule): cell(1.0, 10.0) for rule in decay.RULES.values()}
    cheap, dear, good = decay.DECAYS[:3]
    cells[str(cheap)] = cell(1.01, 8.0)
    cells[str(dear)] = cell(1.5, 1.0)
    cells[str(good)] = cell(0.99, 5.0)
    found = decay.Found({("cv 1.09", 100): cells})
    assert found.choose(decay.DECAYS, 0.02) == str(good)
    assert found.compare(str(good), "longest_wait_s").value == 2.0
    assert found.choose([dear], 0.02) is None

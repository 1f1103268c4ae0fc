"""The result object of a run: whether the verifier trusts the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.sim.clock import VirtualTimePolicy
from flashedge.runtime.records import result
from flashedge.types import Timing, Usage
from tests.support.runtime_rig import BEAM, drive, sim_engines


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


async def solve(**fields: Any) -> dict[str, Any]:
    spec = replace(BEAM, **fields)
    outcome = (await drive(sim_engines(), spec)).outcome
    return result.build_result("run-1", spec, outcome, Usage(), Timing())


@pytest.mark.parametrize("strategy", ["beam", "best_of_n", "mcts"])
async def test_trust_is_the_chosen_paths_score_against_the_threshold(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await solve(strategy=strategy, n=4)
    (score,) = [c["score"] for c in found["completions"] if c["node"] == found["choice"]]
    assert found["trusted"] is (score >= 0.5)
    monkeypatch.setattr(result, "TRUST_THRESHOLD", score)
    assert (await solve(strategy=strategy, n=4))["trusted"] is True
    monkeypatch.setattr(result, "TRUST_THRESHOLD", score + 1e-9)
    assert (await solve(strategy=strategy, n=4))["trusted"] is False


async def test_without_a_verifier_or_an_answer_nothing_is_said_about_trust() -> None:
    assert (await solve(strategy="self_consistency"))["trusted"] is None
    cut = await solve(max_path_tokens=4)
    assert cut["answer"] is None
    assert cut["trusted"] is None

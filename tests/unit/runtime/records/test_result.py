"""The result object of a run: whether the answer is trusted and the tree deterministic."""

from dataclasses import replace
from typing import Any

import pytest

from flashedge.answers import grouping
from flashedge.certainty.measures import ENTROPY
from flashedge.runtime.records import result
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.thinking import Thinking
from flashedge.types import Timing, Usage
from tests.support.runtime_rig import BEAM, drive, sim_engines
from tests.unit.runtime.drive.test_segments import ThinkingCodec


async def solve(**fields: Any) -> dict[str, Any]:
    spec = replace(BEAM, **fields)
    outcome = (await drive(sim_engines(), spec)).outcome
    return result.build_result("run-1", Plan(request=spec), outcome, Usage(), Timing())


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


async def test_each_answer_of_deepconf_says_how_sure_the_model_was() -> None:
    found = await solve(strategy="deepconf", n=4, options={"warm_up": 2, "keep": 0.5})
    sure = {path["node"]: path["confidence"] for path in found["completions"]}
    assert sure[found["choice"]] == max(
        path["confidence"] for path in found["completions"] if path["answer"] == found["answer"]
    )
    assert min(sure.values()) > 0
    assert {path["confidence"] for path in (await solve(n=4))["completions"]} == {None}


async def test_a_search_that_gave_up_marks_its_answer() -> None:
    exits = {"negative_exit": True, "futile": 1.0}
    mcts = {"strategy": "mcts", "n": 8, "aggregate": "prod", "selection": "best"}
    found = await solve(**mcts, options=exits)
    assert (found["cut_by"], found["unlikely"]) == ("futility", True)
    assert found["answer"] is not None
    assert (await solve(**mcts))["unlikely"] is False


@pytest.mark.parametrize("strategy", ["beam", "best_of_n", "mcts", "self_consistency"])
async def test_answers_without_a_box_are_marked_and_change_nothing_but_the_vote(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with early exit: a policy counts boxes alone."""
    boxed = await solve(strategy=strategy)
    assert (boxed["answer"] is not None, boxed["unboxed"]) == (True, False)
    always = ExitOptions(policy="every_step", detect=1, thresholds={ENTROPY: 0.0})
    monkeypatch.setattr(grouping, "find_named_answer", grouping.extract_answer)
    monkeypatch.setattr(grouping, "extract_answer", lambda text: None)
    for early_exit in (None, always):
        named = await solve(strategy=strategy, early_exit=early_exit)
        assert named["unboxed"] is True
        assert named["votes"] == boxed["votes"]
        assert (named["answer"], named["choice"]) == (boxed["answer"], boxed["choice"])
        drawn = [[n["token_ids"] for n in run["tree"]["nodes"]] for run in (named, boxed)]
        assert drawn[0] == drawn[1]


async def test_a_probed_box_is_better_than_a_named_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "extract_answer", lambda text: None)
    monkeypatch.setattr(grouping, "find_named_answer", lambda text: "named")
    chain = {"strategy": "probed_cot", "n": 1}
    for probe_tokens, expected in ((8, False), (0, True)):
        found = await solve(**chain, options={"probe_tokens": probe_tokens})
        assert found["unboxed"] is expected
        assert (found["answer"] == "named") is expected


async def test_a_run_is_deterministic_up_to_the_length_that_the_self_test_proved() -> None:
    outcome = (await drive(sim_engines(), BEAM)).outcome
    prompt = 7
    longest = prompt + max(len(outcome.tree.path_token_ids(node)) for node in outcome.tree.nodes)

    def judge(invariant: Any, tokens: int, cut_by: str | None = None, **options: Any) -> Any:
        plan, usage = Plan(request=replace(BEAM, options=options)), Usage(prompt_tokens=prompt)
        self_test = {"batch_invariant": invariant, "invariant_tokens": tokens}
        ended = replace(outcome, cut_by=cut_by)
        found = result.build_result("r", plan, ended, usage, Timing(), self_test=self_test)
        return found["deterministic"]

    assert judge(True, longest) is True
    assert judge(True, longest - 1) is False
    assert judge(True, longest, cut_by="budget") is True
    assert judge(True, longest, cut_by="deadline") is False
    assert judge(False, longest) is False
    assert judge(True, longest, parallel=4, take="launch") is True
    assert judge(True, longest, parallel=4, take="arrival") is False
    assert judge(None, longest) is None


async def test_the_thinking_is_apart_from_the_text() -> None:
    outcome = (await drive(sim_engines(), BEAM)).outcome
    opened = Thinking.of_prompt(ThinkingCodec(), tuple(b"<think>"))
    plan = Plan(request=BEAM)
    found = result.build_result("run-1", plan, outcome, Usage(), Timing(), thinking=opened)
    assert found["text"] == "", "no simulated path ends its thinking"
    whole = result.build_result("run-1", plan, outcome, Usage(), Timing())
    assert (whole["reasoning"], found["reasoning"]) == (None, whole["text"].strip())
    for apart, plain in zip(found["completions"], whole["completions"], strict=True):
        assert (apart["text"], apart["reasoning"]) == ("", plain["text"].strip())
        assert plain["reasoning"] is None

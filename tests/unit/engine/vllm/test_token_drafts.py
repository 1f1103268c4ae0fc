"""Which requests are drafted inside vLLM's scheduler, from which text, and what is counted."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside import keys, token_drafts
from flashedge.engine.vllm.inside.determinism.windows import ReplayPass
from flashedge.engine.vllm.inside.speculation import make_draft_request
from flashedge.engine.vllm.inside.step_times import StepTimes
from flashedge.engine.vllm.inside.token_drafts import TokenDrafts
from flashedge.scheduling.speculation.drafts import Beam, Continuation, Draft
from flashedge.scheduling.speculation.token_drafts import TextIndex
from flashedge.search.step_rules import BoundaryRule
from flashedge.types import Granularity, Sampling
from scripts.lab.forced_drafts import FreeRows

STOP, LINE, ROUND = 90, 91, [10, 11, 12, 13]
RULE = BoundaryRule.from_texts([(LINE, "\n\n")])
OURS = {keys.TOKEN_DRAFTS: True, "seed": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0}
LIMITS: dict[str, Any] = {"max_model_len": 1000, "max_num_running_reqs": 64}
KINDS = ("async_scheduling", "use_v2_model_runner", "has_mamba_layers", "num_spec_tokens")


def make_drafts(**engine: Any) -> TokenDrafts:
    pool = SimpleNamespace(get_num_free_blocks=lambda: 100)
    fields = {**LIMITS, **dict.fromkeys(KINDS, False), "running": [], "waiting": [], **engine}
    fields["step_times"] = StepTimes()
    device = SimpleNamespace(device_type="cpu")
    fields["vllm_config"] = SimpleNamespace(device_config=device)
    scheduler = SimpleNamespace(kv_cache_manager=SimpleNamespace(block_pool=pool), **fields)
    scheduler.scheduler_config = scheduler
    drafts: Any = TokenDrafts(scheduler, lambda request: (0, "rule"), {"rule": RULE})
    drafts._costs = FreeRows()
    return drafts


def add(
    drafts: TokenDrafts, prompt: Sequence[int], name: str = "r", *, params: Any = (), **args: Any
) -> Request:
    ours = {keys.ARGS_KEY: {**OURS, keys.PROGRAM: "p", **args}}
    asked = {"max_tokens": 100, "stop_token_ids": [STOP], "extra_args": ours, **dict(params)}
    request = Request(name, list(prompt), SamplingParams(temperature=0.0, **asked), None)
    drafts.add_request(request, request)
    return request


def find_text(drafts: TokenDrafts, name: str, of: str = keys.PROGRAM) -> TextIndex:
    return drafts._texts[of, name].index


def propose(drafts: TokenDrafts, request: Request) -> list[int]:
    """The tokens that are drafted for a request which decodes."""
    request.status = RequestStatus.RUNNING
    request.num_computed_tokens = request.num_tokens - 1
    drafts._scheduler.running = [request]
    drafts.propose()
    return list(request.spec_token_ids)


def end_step(drafts: TokenDrafts, request: Request, drawn: Sequence[int]) -> None:
    """End the step of the last proposal, in which these tokens were drawn."""
    request.append_output_token_ids(list(drawn))
    drafts.end_update(make_step(request.request_id, list(request.spec_token_ids)))


def make_step(name: str, guesses: list[int]) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens={name: 1 + len(guesses)},
        total_num_scheduled_tokens=1 + len(guesses),
        scheduled_spec_decode_tokens={name: guesses},
    )


@pytest.mark.parametrize(
    ("text", "limits", "drafted"),
    [
        (ROUND * 2, {}, ROUND * 2),
        (ROUND * 2, {"params": {"max_tokens": 4}}, ROUND[:3]),
        (ROUND * 2, {"params": {"max_tokens": 1}}, []),
        (ROUND * 2, {"engine": {"max_model_len": 11}}, ROUND[:2]),
        (ROUND * 2, {"engine": {"max_num_running_reqs": 4}}, ROUND[:3]),
        (ROUND * 2, {"engine": {"waiting": [None]}}, []),
        ([10, 11, LINE, 10, 11], {}, []),
        ([10, 11, 12, STOP, 10, 11], {}, [12]),
    ],
)
def test_a_draft_ends_before_its_step_the_context_and_the_most_rows(
    text: list[int], limits: dict[str, Any], drafted: list[int]
) -> None:
    drafts = make_drafts(**limits.get("engine", {}))
    request = add(drafts, text, params=limits.get("params", ()))
    assert propose(drafts, request) == drafted


@pytest.mark.parametrize("kind", KINDS)
def test_some_engines_draft_nothing(kind: str) -> None:
    drafts = make_drafts(**{kind: True})
    assert propose(drafts, add(drafts, ROUND * 2)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {keys.ENTROPY_RULE: {"threshold": 1.0, "min_tokens": 3}},
        {keys.DETERMINISTIC: True},
        {keys.TOKEN_DRAFTS: False},
        {"params": {"logit_bias": {5: 1.0}}},
        {"params": {"min_tokens": 4}},
        {"params": {"allowed_token_ids": [5]}},
        {"params": {"prompt_logprobs": 1}},
        {"params": {"structured_outputs": StructuredOutputsParams(regex="a")}},
    ],
    ids=str,
)
def test_some_requests_are_not_drafted(fields: dict[str, Any]) -> None:
    drafts = make_drafts()
    assert propose(drafts, add(drafts, ROUND * 2, **fields)) == []


# ---------------------------------------------------------------- from which text


def test_searches_and_turns_of_a_program_count_each_text_once() -> None:
    drafts, prompts = make_drafts(), [[1, 2, 3, 4], [5, 6, 7, 8]]
    for turn in range(3):
        for number, prompt in enumerate(prompts):
            path = [9, number, turn] if turn else []
            add(drafts, [*prompt, *path], f"{number}-{turn}", **{keys.PATH_FROM: 4})
    add(drafts, [*prompts[0], 20, 21], "next")
    add(drafts, [*prompts[0], 20, 21, 22], "last")
    index = find_text(drafts, "p")
    for text in (*prompts, [*prompts[0][2:], 20], [20, 21, 22]):
        assert index.find(text[:-1]) == (len(text) - 1, 1 << 24 | text[-1])
    assert index.find([9]) is None, "paths are counted when they are drawn"
    assert propose(drafts, add(drafts, [5, 6], "other", **{keys.PROGRAM: "other"})) == []


def test_a_client_is_drafted_from_its_earlier_texts_and_from_nobody_elses() -> None:
    drafts = make_drafts()
    first = add(drafts, [1, 2], "first", **{keys.PROGRAM: "one", keys.CLIENT: "me"})
    propose(drafts, first)
    end_step(drafts, first, ROUND)
    for number, client in enumerate(("me", "other", "")):
        args = {keys.PROGRAM: f"new {number}", keys.CLIENT: client}
        assert propose(drafts, add(drafts, [99, 10, 11], f"same {number}", **args)) == (
            ROUND[2:] if client == "me" else []
        )
    for number in range(3):
        add(drafts, [7] * 6, f"again {number}", **{keys.PROGRAM: f"{number}", keys.CLIENT: "me"})
    found = find_text(drafts, "me", keys.CLIENT).find([7] * 3)
    assert found == (3, 3 << 24 | 7), "a prompt that comes again is counted once"
    for turn, program in itertools.product(range(3), range(20)):
        args = {keys.PROGRAM: f"chat {program}", keys.CLIENT: "me"}
        add(drafts, [200 + program, 8, 9] + [60] * turn, f"turn {turn} {program}", **args)
    found = find_text(drafts, "me", keys.CLIENT).find([8])
    assert found == (1, 20 << 24 | 9), "and so is each of many that grow at once"
    adopted = add(drafts, [1, 2], "draft", **{keys.TOKEN_DRAFTS: None})
    adopted.append_output_token_ids([50, 51])
    asked_for = {keys.PROGRAM: "last", keys.CLIENT: "me"}
    drafts.add_request(add(make_drafts(), [1, 2], "asked", **asked_for), adopted)
    for of, name in ((keys.PROGRAM, "last"), (keys.CLIENT, "me")):
        assert find_text(drafts, name, of).find([50]) == (1, 1 << 24 | 51)


def test_a_drafted_step_has_the_owners_of_its_run() -> None:
    kept = {keys.PROGRAM: "p", keys.CLIENT: "me", keys.PATH_FROM: 3, keys.TOKEN_DRAFTS: True}
    after = Continuation(
        run="r", level=1, seeds=(5, 6), granularity=Granularity(max_tokens=9), max_drafts=2
    )
    draft = Draft(beam=Beam(continuation=after, sampling=Sampling(), path=(1, 2, 3, 4)), child=1)
    made = make_draft_request(draft, "draft-0", add(make_drafts(), [1, 2, 3], **kept))
    args = keys.read_args(made.sampling_params)
    assert {name: args[name] for name in (*kept, "seed")} == {**kept, "seed": 6}


def test_the_memory_of_all_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_drafts, "MOST_CONTEXTS", 100)
    drafts = make_drafts()
    long = add(drafts, range(20))
    for step in range(20):
        propose(drafts, long)
        end_step(drafts, long, range(100 * step, 100 * step + 9))
    assert len(find_text(drafts, "p")) < 130
    add(drafts, range(5), "again")
    assert len(find_text(drafts, "p")) == 9, "it forgets its own text, too"
    for number in range(40):
        add(drafts, range(10), str(number), **{keys.PROGRAM: str(number)})
    sizes = [len(text.index) for text in drafts._texts.values()]
    assert drafts._contexts == sum(sizes) < 130
    assert list(drafts._texts)[-1] == (keys.PROGRAM, "39")
    monkeypatch.setattr(token_drafts, "MOST_OWNERS", len(sizes))
    for number in range(3):  # such prompts have few contexts, but are kept whole
        add(drafts, [7] * 50, f"same {number}", **{keys.PROGRAM: f"same {number}"})
        assert len(drafts._texts) == len(sizes)
    assert drafts._contexts == sum(len(text.index) for text in drafts._texts.values())


# ---------------------------------------------------------------- what is counted


def test_a_step_counts_its_drafted_tokens() -> None:
    drafts = make_drafts()
    request = add(drafts, ROUND * 2)
    before = sum(drafts._rates.tried), sum(drafts._rates.accepted)
    assert propose(drafts, request) == ROUND * 2
    end_step(drafts, request, [10, 11, 50])
    assert drafts.counters == {"accepted_tokens": 2}
    assert sum(drafts._rates.tried) - before[0] == 3
    assert sum(drafts._rates.accepted) - before[1] == 2
    assert propose(drafts, request) == []
    request.status = RequestStatus.FINISHED_STOPPED
    end_step(drafts, request, [51])
    assert find_text(drafts, "p").find([10, 11, 50]) == (3, 1 << 24 | 51)
    drafts.propose()
    assert drafts._requests == {}


def test_a_step_that_adopts_a_draft_goes_on_behind_its_tokens() -> None:
    """vLLM's request is the draft's, with a prompt and tokens of its own."""
    drafts = make_drafts()
    adopted = add(drafts, [1, 2, *ROUND], "draft-0", **{keys.TOKEN_DRAFTS: None})
    adopted.append_output_token_ids([*ROUND, 10])
    drafts.add_request(add(make_drafts(), [1, 2, *ROUND], "asked"), adopted)
    assert propose(drafts, adopted)[:3] == [11, 12, 13]
    end_step(drafts, adopted, [11, 12, 50])
    assert drafts.counters["accepted_tokens"] == 2


def test_the_guesses_of_a_verify_pass_are_no_drafts() -> None:
    drafts, times, guesses = make_drafts(), StepTimes(), [1, 2, 3, 4]
    add(drafts, ROUND)
    step = make_step("flagged", guesses)
    times.end(step)
    assert times.counters == {"drafted_tokens": 4, "drafted_steps": 1}
    ReplayPass(rows=32, guesses={"flagged": guesses}).attach(step)
    times.end(step)
    drafts.end_update(step)
    assert times.counters == {"drafted_tokens": 4, "drafted_steps": 1}
    assert set(drafts.counters.values()) == {0}

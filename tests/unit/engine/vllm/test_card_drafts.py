"""Drafts in vLLM's second runner: what the scheduler tells the runner, and what the runner drafts.

`engine/test_replay_scheduler.py` runs random searches with drafted tokens on the real scheduler.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput

from flashedge.engine.vllm.inside.card_drafts import SOURCES, CardDrafts, Source, hash_owners
from flashedge.engine.vllm.inside.draft_table.naive import NO_OWNER
from flashedge.engine.vllm.inside.keys import (
    ARGS_KEY,
    CLIENT,
    ENTROPY_RULE,
    PATH_FROM,
    PROGRAM,
    TOKEN_DRAFTS,
)
from flashedge.engine.vllm.inside.step_times import StepTimes
from flashedge.engine.vllm.inside.table_speculator import SPAN, TableSpeculator
from flashedge.scheduling.speculation.token_drafts import MOST_ON_CARD, list_widths
from tests.support.sampling_rows import CPU

KEY = hash_owners([(PROGRAM, "search")])


def make_request(name: str, prompt: list[int], drawn: int = 0, **changes: Any) -> Any:
    args: dict[str, Any] = {"seed": 7, "temperature": 0.8, "top_k": 0, "top_p": 1.0}
    args |= {PROGRAM: "search", TOKEN_DRAFTS: True}
    params = SamplingParams(temperature=0.0, extra_args={ARGS_KEY: {**args, **changes}})
    return SimpleNamespace(
        request_id=name,
        prompt_token_ids=prompt,
        num_prompt_tokens=len(prompt),
        num_tokens=len(prompt) + drawn,
        sampling_params=params,
        spec_token_ids=[-1] * 4,
    )


def make_scheduler(*, free_blocks: int = 10_000) -> Any:
    pool = SimpleNamespace(get_num_free_blocks=lambda: free_blocks)
    manager = SimpleNamespace(block_pool=pool)
    more: dict[str, Any] = {"running": [], "requests": {}, "has_mamba_layers": False}
    more["step_times"] = StepTimes()
    return SimpleNamespace(num_spec_tokens=7, kv_cache_manager=manager, **more)


def schedule(drafts: CardDrafts, *names: str, new: tuple[str, ...] = ()) -> Any:
    output = SchedulerOutput.make_empty()
    output.num_scheduled_tokens = dict.fromkeys(names, 1)
    output.scheduled_new_reqs = [SimpleNamespace(req_id=name) for name in new]
    output.num_spec_tokens_to_schedule = 7
    drafts.complete_output(output)
    return output


def test_the_runner_learns_of_new_requests_and_of_adopted_ones() -> None:
    """Of the second, the prompt was the first one's path, and a draft has drawn two tokens."""
    drafts = CardDrafts(make_scheduler())
    first = make_request("a", [1, 2, 3], **{PATH_FROM: 3})
    drafts.add_request(first, first)
    second = make_request("b", [1, 2, 3, 4], **{PATH_FROM: 3})
    drafts.add_request(second, make_request("draft-1", [1, 2, 3, 4], drawn=2, temperature=0.0))
    assert schedule(drafts, "other").__dict__[SOURCES] == {}, "neither is in the step"
    told = schedule(drafts, "a", "draft-1", new=("a",)).__dict__[SOURCES]
    assert told == {"a": Source(KEY, ((0, 3),)), "draft-1": Source(KEY, ((4, 6),))}
    assert schedule(drafts, "a", "draft-1").__dict__[SOURCES] == {}, "it knows them"
    again = schedule(drafts, "a", new=("a",)).__dict__[SOURCES]
    assert again == {"a": Source(KEY, ())}, "it came back, and its prompt was counted"


def test_what_was_not_told_yet_is_counted_all_the_same() -> None:
    """A request goes on with another step before it was ever computed."""
    drafts = CardDrafts(make_scheduler())
    request = make_request("a", [1, 2, 3])
    for prompt in ([1, 2, 3], [1, 2, 3, 4]):
        drafts.add_request(make_request("a", prompt), request)
    told = schedule(drafts, "a", new=("a",)).__dict__[SOURCES]
    assert told["a"].spans == ((3, 4), (0, 3))


def test_a_conversation_counts_what_is_new_in_its_prompt() -> None:
    drafts = CardDrafts(make_scheduler())
    for name, prompt in (("a", [1, 2, 3]), ("b", [1, 2, 9, 9]), ("c", [1, 2, 3])):
        request = make_request(name, prompt)
        drafts.add_request(request, request)
    told = schedule(drafts, "a", "b", "c", new=("a", "b", "c")).__dict__[SOURCES]
    spans = {name: source.spans for name, source in told.items()}
    assert spans == {"a": ((0, 3),), "b": ((2, 4),), "c": ()}


def test_a_text_belongs_to_its_client_too() -> None:
    """What the client has asked in another program is counted for the client alone."""
    drafts = CardDrafts(make_scheduler())
    for name, client in (("a", "me"), ("b", "me"), ("c", "other")):
        request = make_request(name, [1, 2, 3], **{PROGRAM: name, CLIENT: client})
        drafts.add_request(request, request)
    told = schedule(drafts, "a", "b", "c", new=("a", "b", "c")).__dict__[SOURCES]
    (a, mine), (b, again), (c, other) = [told[name].owners for name in "abc"]
    assert len({a, b, c, mine, other, NO_OWNER}) == 6
    assert mine == again
    assert [told[name].spans for name in "abc"] == [((0, 3),), (), ((0, 3),)]


def test_nothing_is_drafted_beside_a_request_for_the_log_probabilities_of_given_tokens() -> None:
    scheduler = make_scheduler()
    drafts = CardDrafts(scheduler)
    drafted, other = make_request("a", [1]), make_request("b", [1])
    drafts.add_request(drafted, drafted)
    scheduler.running.append(drafted)
    other.sampling_params.logprob_token_ids = [5]
    scheduler.requests["b"] = other
    drafts.drop_placeholders()
    assert drafted.spec_token_ids == []


@pytest.mark.parametrize("change", [{TOKEN_DRAFTS: False}, {ENTROPY_RULE: {"least": 2}}])
def test_what_may_not_be_drafted_gets_no_placeholders(change: dict[str, Any]) -> None:
    scheduler = make_scheduler()
    drafts = CardDrafts(scheduler)
    drafted, other = make_request("a", [1]), make_request("b", [1], **change)
    for request in (drafted, other):
        drafts.add_request(request, request)
        scheduler.running.append(request)
    drafts.drop_placeholders()
    assert [len(request.spec_token_ids) for request in scheduler.running] == [4, 0]
    assert drafted in drafts
    assert other not in drafts


def test_nothing_is_drafted_where_blocks_are_short() -> None:
    scheduler = make_scheduler(free_blocks=3)
    drafts = CardDrafts(scheduler)
    assert schedule(drafts, "a").num_spec_tokens_to_schedule > 0
    scheduler.running = [make_request("a", [1]), make_request("b", [1])]
    assert schedule(drafts, "a").num_spec_tokens_to_schedule == 0


class Steps:
    """Steps of four sequences, one ahead of the other, with a time that depends on their rows."""

    def __init__(self, row_s: float, right: int) -> None:
        self.now_s = 0.0
        scheduler = make_scheduler()
        self.times = scheduler.step_times = StepTimes(clock=lambda: self.now_s)
        self.drafts = CardDrafts(scheduler)
        self._row_s, self._right = row_s, right
        self._names = tuple("abcd")
        self._flying = schedule(self.drafts, *self._names)

    def run(self, steps: int) -> list[int]:
        """Returns how many tokens were drafted for each step. `right` of a draft's are right."""
        widths = []
        for _ in range(steps):
            self.times.begin()
            output = schedule(self.drafts, *self._names)
            self.times.complete_output(output)
            flying, self._flying = self._flying, output
            width = flying.num_spec_tokens_to_schedule
            widths.append(width)
            tokens = {name: [-1] * width for name in self._names if width}
            output.scheduled_spec_decode_tokens = tokens
            rows = len(self._names) * (1 + width)
            output.total_num_scheduled_tokens = rows
            output.num_scheduled_tokens = dict.fromkeys(self._names, 1 + width)
            self.now_s += 0.002 + self._row_s * rows
            drawn = [[5] * (1 + min(self._right, width)) for _ in self._names]
            order = {name: at for at, name in enumerate(self._names)}
            ran: Any = SimpleNamespace(sampled_token_ids=drawn, req_id_to_index=order)
            self.drafts.begin_update(output, ran)
            self.times.end(output)
        return widths


def test_drafts_are_wide_where_rows_take_no_time() -> None:
    assert set(Steps(row_s=1e-7, right=7).run(400)[-100:]) == {7}


def test_drafts_are_as_wide_as_is_worth_their_time() -> None:
    """Now and then the widest is tried, since drafts may have become better."""
    widths = Steps(row_s=5e-4, right=1).run(800)[-300:]
    assert sorted(set(widths)) == [1, 7]
    assert widths.count(7) < 12


def test_nothing_is_drafted_where_no_draft_is_right() -> None:
    widths = Steps(row_s=2e-3, right=0).run(800)[-300:]
    assert sorted(set(widths)) == [0, 7]
    assert widths.count(7) < 12


@pytest.mark.parametrize("fields", [{"num_spec_tokens": 0}, {"has_mamba_layers": True}])
def test_some_engines_draft_nothing(fields: dict[str, Any]) -> None:
    scheduler = make_scheduler()
    scheduler.__dict__.update(fields)
    drafts = CardDrafts(scheduler)
    request = make_request("a", [1])
    drafts.add_request(request, request)
    assert request not in drafts
    output = schedule(drafts, "a", new=("a",))
    assert SOURCES not in output.__dict__
    assert output.num_spec_tokens_to_schedule == 0


@pytest.mark.parametrize("sequences", [1, 2, 7, 16, 64, 128])
def test_a_step_with_drafts_has_no_more_rows_than_the_largest(sequences: int) -> None:
    widths = list_widths(sequences, MOST_ON_CARD)
    assert [first for first, _, _ in widths] == [1, *(last + 1 for _, last, _ in widths[:-1])]
    assert widths[-1][1:] == (sequences, 0)
    assert all(last * (1 + tokens) <= sequences for _, last, tokens in widths)
    assert [7, 3, 1, 0][-len(widths) :] == [tokens for _, _, tokens in widths]


# ---------------------------------------------------------------- the runner


def make_speculator(texts: list[list[int]], most: int = 4) -> tuple[TableSpeculator, Any]:
    longest = max(map(len, texts))
    padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    states: Any = SimpleNamespace(
        max_num_reqs=len(texts),
        req_id_to_index={f"r{slot}": slot for slot in range(len(texts))},
        all_token_ids=SimpleNamespace(gpu=padded.int()),
        total_len=SimpleNamespace(gpu=torch.tensor(list(map(len, texts))).int()),
    )
    config: Any = SimpleNamespace(num_speculative_tokens=most)
    return TableSpeculator(config, CPU, states), states


def propose(speculator: TableSpeculator, slots: list[int], sampled: list[int], **more: Any) -> Any:
    batch = SimpleNamespace(idx_mapping=torch.tensor(slots))
    counts = torch.tensor(sampled, dtype=torch.int32)
    return speculator.propose(batch, None, None, None, None, counts, None, None, **more).tolist()


def test_drafts_follow_prompts_and_what_was_drawn() -> None:
    """A long prompt is counted in several spans. The second request is of the same program, the
    third of none."""
    prompt = list(range(100, 100 + 3 * SPAN))
    texts = [prompt, [5, 6, prompt[SPAN - 1]], [5, 6, 5], [9, 5]]
    speculator, _ = make_speculator(texts)
    seen = Source(KEY, ())
    sources = {"r0": Source(KEY, ((0, len(prompt)),)), "r1": seen, "r3": seen}
    speculator.learn(["r0", "r1", "r2"], sources)
    drafted = propose(speculator, [1, 2], [2, 1])
    assert drafted[0] == prompt[SPAN : SPAN + 4]
    assert drafted[1] == [5] * 4, "it has no owner"
    assert propose(speculator, [3], [1])[0][:2] == [6, prompt[SPAN - 1]], "a sibling drew them"
    assert propose(speculator, [1], [0], num_speculative_tokens=2)[0][:2] == prompt[SPAN : SPAN + 2]
    speculator.learn(["r1"], {})
    assert propose(speculator, [1], [1])[0] == [texts[1][-1]] * 4, "another has its slot"


def test_a_dummy_run_counts_nothing() -> None:
    speculator, _ = make_speculator([[1, 2, 1, 2]])
    speculator.learn(["r0"], {"r0": Source(KEY, ())})
    assert propose(speculator, [0], [4], dummy_run=True) == [[0] * 4]
    assert propose(speculator, [0], [0]) == [[2] * 4]
    assert tuple(speculator._owners[0]) == KEY != (NO_OWNER, NO_OWNER)

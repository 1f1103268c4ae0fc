"""Random searches on the real scheduler: what drafts draw is what the children draw themselves.

Each search generates the steps of a level at once. When all have ended, some paths are kept, and
their children are the next level. So steps are drafted, paused, adopted and dropped, while the
quota changes, requests are aborted and the engine is lost. Model, KV and checks are
`replay_machine`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from flashedge.engine.vllm.inside.keys import (
    ARGS_KEY,
    BOUNDARY,
    CLIENT,
    DETERMINISTIC,
    LOGPROBS,
    PROGRAM,
    TOKEN_DRAFTS,
)
from flashedge.scheduling.speculation.drafts import Continuation
from flashedge.search.step_rules import BoundaryRule
from flashedge.types import Granularity
from scripts.bench.determinism.token_runner import (
    VOCABULARY,
    RunnerState,
    build_request,
    draw_token,
)
from tests.support.replay_machine import BLOCK, STOP, HashRunner, SchedulerMachine, draw_path

ENDS = frozenset({1, 12, 23, 34})
"""Tokens that end a step."""
RULE = "rule"
RULES = {RULE: BoundaryRule.from_words(((token, "end") for token in ENDS), {"end"}).to_json()}


@dataclass(slots=True)
class _Drawn:
    """What the runner knows of a request, which may be a draft's."""

    seed: int
    deterministic: bool


class SearchRunner(HashRunner):
    asked: dict[str, _Drawn]

    def run(self, output: Any) -> Any:
        for new in output.scheduled_new_reqs:
            args = new.sampling_params.extra_args[ARGS_KEY]
            self.asked[new.req_id] = _Drawn(args["seed"], bool(args.get(DETERMINISTIC)))
        return super().run(output)

    def make_output(self, output: Any, names: list[str]) -> Any:
        from vllm.v1.outputs import LogprobsLists

        ran = super().make_output(output, names)
        counts = [len(tokens) for tokens in ran.sampled_token_ids]
        rows = sum(counts)
        ran.logprobs = LogprobsLists(
            np.zeros((rows, 1), np.int64),
            np.zeros((rows, 1), np.float32),
            np.zeros(rows, np.int64),
            [0, *np.cumsum(counts).tolist()],
        )
        return ran


@dataclass(slots=True)
class Step:
    path: tuple[int, ...]
    seed: int
    children: tuple[int, ...]
    max_tokens: int
    copied: tuple[int, ...] = ()
    """Tokens of another step with which it begins."""
    tokens: list[int] = field(default_factory=list)
    is_over: bool = False
    is_lost: bool = False


@dataclass(slots=True)
class Search:
    name: str
    deterministic: bool
    steps: list[Step]
    level: int = 0


class SearchMachine(SchedulerMachine):
    searches, levels = 4, 6
    abort_rate, restart_rate, quota_rate, commit_rate = 0.01, 0.002, 0.05, 0.1
    deterministic = 0.2
    drafted = 0.0
    """How many of the requests may have drafted tokens."""
    client: str | None = None

    def __init__(self, start: Callable[[], Any], seed: int, *, is_async: bool) -> None:
        super().__init__(start, seed, is_async=is_async)
        self._steps: dict[str, Step] = {}
        self._open()
        self._seeds = iter(range(1, 1 << 30))
        self._searches = [self._make_search(f"run{n}") for n in range(self.searches)]

    def _make_runner(self) -> SearchRunner:
        return SearchRunner(0.1, self.draw, is_async=self._is_async)

    def _make_search(self, name: str) -> Search:
        draw = self.draw
        prompt = tuple(draw.choices(range(VOCABULARY), k=draw.randint(1, 20)))
        width = draw.choice((1, 2, 4, 8))
        steps = [self._make_step(prompt, next(self._seeds)) for _ in range(width)]
        return Search(name=name, deterministic=draw.random() < self.deterministic, steps=steps)

    def _make_step(self, path: tuple[int, ...], seed: int) -> Step:
        """The first child goes on in its parent's stream."""
        more = self.draw.randint(0, 3)
        children = (seed, *(next(self._seeds) for _ in range(more)))
        return Step(path, seed, children, max_tokens=self.draw.choice((1, 3, 40, 40)))

    def run(self, max_steps: int = 20_000) -> None:
        waiting = [(search, step) for search in self._searches for step in search.steps]
        idle = 0
        for _ in range(max_steps):
            while waiting and self.draw.random() < 0.7:
                self._add(*waiting.pop(0))
            self._disturb()
            for search in self._searches:
                if search.steps and all(step.is_over for step in search.steps):
                    waiting += [(search, step) for step in self._end_level(search)]
            if not waiting and not any(search.steps for search in self._searches):
                break
            idle = 0 if self._step() or waiting else idle + 1
            assert idle < 20, "the scheduler stands still"
        assert not any(search.steps for search in self._searches), "a search is never over"
        self._check_end()

    def _add(self, search: Search, step: Step) -> None:
        from vllm import SamplingParams

        name = f"step{len(self._steps)}"
        self._steps[name] = step
        after = Continuation(
            run=search.name,
            level=search.level,
            seeds=step.children,
            granularity=Granularity(max_tokens=40, to_end=False),
            max_drafts=len(step.children),
            step_rule=RULE,
            deterministic=search.deterministic,
        )
        args = {"seed": step.seed, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        args |= {BOUNDARY: RULE, LOGPROBS: True, DETERMINISTIC: search.deterministic}
        args |= {PROGRAM: search.name, TOKEN_DRAFTS: self.draw.random() < self.drafted}
        args |= {CLIENT: self.client, "continuation": after.to_json()}
        room = self.scheduler.max_model_len - len(step.path)
        params = SamplingParams(
            max_tokens=min(step.max_tokens, room),
            stop_token_ids=[STOP],
            logprobs=0,
            extra_args={ARGS_KEY: args},
        )
        request = build_request(name, step.path, BLOCK, sampling_params=params, pooling_params=None)
        self.scheduler.add_request(request)

    def _disturb(self) -> None:
        draw = self.draw
        if draw.random() < self.quota_rate:
            self._change_quota()
        open_steps = [name for name, step in self._steps.items() if not step.is_over]
        if open_steps and draw.random() < self.abort_rate:
            name = draw.choice(open_steps)
            self._abort(name)
            self._steps[name].is_over = self._steps[name].is_lost = True
        if draw.random() < self.commit_rate:
            search = draw.choice(self._searches)
            children = [(s.children[0], draw.randint(1, 4)) for s in search.steps if s.is_over]
            self.scheduler.drafts.commit(search.name, search.level, children)
        if draw.random() < self.restart_rate:
            self._restart()

    def _restart(self) -> None:
        """Lose the engine. What was open is lost with it."""
        self._count()
        self._open()
        for step in self._steps.values():
            step.is_lost = step.is_lost or not step.is_over
            step.is_over = True

    def _end_level(self, search: Search) -> Sequence[Step]:
        """Choose the next level's steps, and say which drafts can still be of use."""
        longest = self.scheduler.max_model_len - 2
        alive = [
            (path, step)
            for step in search.steps
            if not step.is_lost
            and len(path := (*step.path, *step.tokens)) < longest
            and path[-1] != STOP
        ]
        kept = [pair for pair in alive if self.draw.random() < 0.8]
        search.level += 1
        if not kept or search.level == self.levels:
            self.scheduler.drafts.end_run(search.name)
            search.steps = []
            return ()
        search.steps = [
            self._make_step(path, seed)
            for path, step in kept
            for seed in step.children[: self.draw.randint(1, 3)]
        ][:8]
        seeds = [step.seed for step in search.steps]
        self.scheduler.drafts.drop_unused(search.name, [search.level - 1], seeds)
        return search.steps

    def _receive(self, found: Any) -> None:
        step = self._steps[found.request_id]
        if step.is_lost:
            return
        step.tokens += found.new_token_ids
        step.is_over = found.finish_reason is not None
        longest = self.scheduler.max_model_len
        path, left = (*step.path, *step.copied), step.max_tokens - len(step.copied)
        expected = [*step.copied, *draw_path(path, step.seed, left, longest, {STOP, *ENDS})]
        known = expected if step.is_over else expected[: len(step.tokens)]
        assert step.tokens == known, "a token was lost, or is wrong"

    def _count(self) -> None:
        super()._count()
        self.counters.update(self.scheduler.drafts.counters)
        self.counters["rollbacks"] += self.scheduler.passes.counters["rollbacks"]

    def _check_end(self) -> None:
        while self._is_busy:
            self._step()
        assert not self.scheduler.requests, "a request that is over is remembered"
        super()._check_end()


# ---------------------------------------------------------------- vLLM's second runner


class SlotRunner(SearchRunner):
    """Keeps requests as vLLM's second runner does. Each has a slot until it is said to have
    left. Its tokens with KV are counted here, and not sent with each step."""

    def __init__(self, draw: Random, slots: int) -> None:
        super().__init__(0.0, draw)
        self._slots_left = slots
        self._computed: dict[str, int] = {}

    def run(self, output: Any) -> Any:
        ran = super().run(output)
        for name, count in output.num_scheduled_tokens.items():
            self._computed[name] += count
        return ran

    def _update_states(self, output: Any) -> None:
        for name in output.finished_req_ids | (output.preempted_req_ids or set()):
            self._leave(name)
        for new in output.scheduled_new_reqs:
            self._leave(new.req_id)
            assert self._slots_left, "a request that has left keeps its slot"
            self._slots_left -= 1
            (blocks,) = new.block_ids
            tokens = list(new.prefill_token_ids)
            self._states[new.req_id] = RunnerState(self.asked[new.req_id], tokens, [], list(blocks))
            self._computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        assert not cached.resumed_req_ids, "a request that comes back is sent whole"
        for index, name in enumerate(cached.req_ids):
            self._check_computed(name, cached.num_computed_tokens[index])
            if (more := cached.new_block_ids[index]) is not None:
                self._states[name].blocks += more[0]

    def _check_computed(self, name: str, told: int) -> None:
        assert told == self._computed[name], "it was taken back"

    def _leave(self, name: str) -> None:
        if self._states.pop(name, None) is not None:
            self._slots_left += 1
            del self._computed[name]


class SlotMachine(SearchMachine):
    deterministic = 0.0

    def _make_runner(self) -> SlotRunner:
        self.scheduler.use_v2_model_runner = True
        return SlotRunner(self.draw, self.scheduler.max_num_running_reqs)


class DraftingRunner(SlotRunner):
    """Drafts tokens, some of them wrong ones. The scheduler does not know which were drawn until it
    has scheduled the next step, and then knows only how many tokens may have KV."""

    right = 0.7

    def run(self, output: Any) -> Any:
        ran = super().run(output)
        for name, drawn in zip(ran.req_ids, ran.sampled_token_ids, strict=True):
            if drafted := output.scheduled_spec_decode_tokens.get(name):
                assert drawn, "only requests that draw tokens have drafts"
                self._computed[name] -= len(drafted) + 1 - len(drawn)
        return ran

    def _check_computed(self, name: str, told: int) -> None:
        assert told >= self._computed[name], "it was taken back"

    def _find_start(self, output: Any, name: str) -> int:
        return self._computed[name]

    def _find_guesses(self, output: Any, name: str) -> list[int]:
        state, path = self._states[name], self._states[name].tokens
        for _ in output.scheduled_spec_decode_tokens.get(name, ()):
            is_right = self._draw.random() < self.right
            truth = draw_token(path, state.asked.seed)
            path.append(truth if is_right else self._draw.randrange(VOCABULARY))
        return path[len(state.tokens) :]


class DraftingMachine(SlotMachine):
    """Drafts any number of tokens that there can be."""

    drafted = 0.8

    def _make_runner(self) -> DraftingRunner:
        self.scheduler.use_v2_model_runner = True
        choices = (0, 1, 3, 7)
        self.scheduler.card_drafts._choose_width = lambda sequences, most: self.draw.choice(
            [tokens for tokens in choices if tokens <= most]
        )
        return DraftingRunner(self.draw, self.scheduler.max_num_running_reqs)

    def _count(self) -> None:
        super()._count()
        self.counters.update(self.scheduler.view()["token_drafts"])

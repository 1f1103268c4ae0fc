"""Drafts tokens of running requests, inside vLLM's scheduler.

Before a step is scheduled, `propose` gives vLLM drafted tokens of requests that decode. The step
computes their rows too, and `determinism.runner.draw_guessed` keeps the tokens that are drawn. What
a draft is taken from is in `scheduling.speculation.token_drafts`. A row is drafted if its chance of
bringing a token is worth more than its time (`scheduling.speculation.step_costs`).

Only in synchronous engines with vLLM's first model runner: a step in flight has drawn tokens that
the scheduler does not know yet. `card_drafts` is for the second one. Ours. Checked with vLLM
0.32.0.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside import keys
from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.keys import read_args
from flashedge.engine.vllm.inside.noise import is_plain
from flashedge.engine.vllm.inside.step_times import limit_sequences
from flashedge.scheduling.speculation.step_costs import StepCosts, cut_drafts
from flashedge.scheduling.speculation.token_drafts import (
    MOST_TOKENS,
    AcceptanceRates,
    DraftToken,
    Owner,
    TextIndex,
    draft,
    list_owners,
)
from flashedge.search.step_rules import BoundaryRule

MOST_CONTEXTS = 400_000
"""Contexts of all indices together, some 80 MB. No further text is counted until a request comes.
Then those of the oldest owners go, until half of them are left."""
MOST_OWNERS = 256
"""Programs and clients whose text and last prompts are kept, the newest ones."""
LAST_PROMPTS = 8
"""Prompts of an owner that the next one is compared with. Several of its conversations and searches
may be open at once."""


@dataclass(slots=True, eq=False)
class KnownText:
    """The text of a program's requests, a search's whole tree or a conversation, or that of all
    requests of a client."""

    index: TextIndex = field(default_factory=TextIndex)
    prompts: deque[list[int]] = field(default_factory=lambda: deque(maxlen=LAST_PROMPTS))
    """The last prompts that were counted."""


def find_owners(requested: Request) -> list[Owner]:
    """Find the owners of a request's text."""
    args = read_args(requested.sampling_params)
    program = args.get(keys.PROGRAM) or requested.request_id
    return list_owners(program, args.get(keys.CLIENT, ""))


def find_new(
    prompts_of: Sequence[deque[list[int]]], args: Mapping[str, Any], prompt: list[int]
) -> list[range]:
    """Find for each owner the part of a prompt that it has not counted yet, and remember the
    prompt.

    prompts_of: the last prompts of each owner. The program is the first, and what it has counted
    its client has too. args: our part of the request's parameters.
    """
    if prompts_of[0]:  # the path after a search's prompt was counted when it was drawn
        prompt = prompt[: args.get(keys.PATH_FROM)]
    found, start = [], 0
    for prompts in prompts_of:
        if start < len(prompt):
            start = max([start, *(count_common(known, prompt) for known in prompts)])
        if start < len(prompt):
            prompts.append(prompt)
        found.append(range(start, len(prompt)))
    return found


def count_common(one: list[int], other: list[int]) -> int:
    """Count the tokens at the start of two texts that are the same."""
    same, most = 0, min(len(one), len(other))
    while same < most:
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


@dataclass(slots=True, eq=False, kw_only=True)
class Drafted:
    """A request whose tokens may be drafted."""

    request: Request
    indices: Sequence[TextIndex]
    counted: int
    """How many of the request's tokens are in the indices."""
    stop_ids: frozenset[int]
    rule: BoundaryRule | None = None
    """Ends the request's step."""
    draft: list[DraftToken] = field(default_factory=list)

    def ends_step(self, previous: int, token: int) -> bool:
        """Whether a token after another ends the request or its step."""
        if token in self.stop_ids:
            return True
        return self.rule is not None and self.rule.ends_step(previous, token)


class TokenDrafts:
    def __init__(
        self,
        scheduler: Any,
        locate_step: Callable[[Request], tuple[int, str | None]],
        rules: Mapping[str | None, BoundaryRule],
    ) -> None:
        self._scheduler, self._locate_step, self._rules = scheduler, locate_step, rules
        self._is_possible = not (
            scheduler.scheduler_config.async_scheduling
            or scheduler.use_v2_model_runner
            or scheduler.has_mamba_layers  # their state can't go back to before a wrong token
            or scheduler.num_spec_tokens  # the model runner drafts (`card_drafts`)
        )
        self._texts = OrderedDict[Owner, KnownText]()
        self._contexts = 0
        """How many the indices have together."""
        self._requests: dict[str, Drafted] = {}
        self._rates = AcceptanceRates()
        self._costs: StepCosts = scheduler.step_times.costs
        self._most_sequences = limit_sequences(scheduler)
        self.counters = {"accepted_tokens": 0}  # drafted tokens that were drawn

    def add_request(self, requested: Request, request: Request) -> None:
        """Count a new request's prompt. request: vLLM's request that computes it, which may be a
        draft of `speculation` that has tokens of its own."""
        params = requested.sampling_params
        if not self._is_possible or params is None or not may_draft(params):
            return
        args = read_args(params)
        texts = [self._find_text(owner) for owner in find_owners(requested)]
        prompt = list(requested.prompt_token_ids or ())
        parts = find_new([text.prompts for text in texts], args, prompt)
        for text, new in zip(texts, parts, strict=True):
            self._count(text.index, prompt[: new.stop], new.start)
        if request.request_id in self._requests:
            return
        for text in texts:
            self._count(text.index, request._all_token_ids, request.num_prompt_tokens)
        self._requests[request.request_id] = Drafted(
            request=request,
            indices=[text.index for text in texts],
            counted=request.num_tokens,
            stop_ids=frozenset({*(params.stop_token_ids or ()), params.eos_token_id}),
        )

    def _find_text(self, owner: Owner) -> KnownText:
        """Find the text of an owner. Drop those of the oldest ones if there are too many."""
        self._texts.setdefault(owner, KnownText())
        self._texts.move_to_end(owner)
        if len(self._texts) > MOST_OWNERS:
            self._drop_oldest()
        if self._contexts >= MOST_CONTEXTS:
            # Those of dropped owners that still have requests were counted, too.
            self._contexts = sum(len(text.index) for text in self._texts.values())
            while self._contexts > MOST_CONTEXTS // 2:
                self._drop_oldest()
        return self._texts.setdefault(owner, KnownText())

    def _drop_oldest(self) -> None:
        _, dropped = self._texts.popitem(last=False)
        self._contexts -= len(dropped.index)

    def _count(self, index: TextIndex, text: Sequence[int], start: int) -> None:
        """Count the tokens of a text from index `start` on, if there is room."""
        if self._contexts < MOST_CONTEXTS:
            before = len(index)
            index.add(text, start)
            self._contexts += len(index) - before

    # ------------------------------------------------------------ a step

    def propose(self) -> None:
        """Draft tokens before a step is scheduled, as far as their KV takes nothing from requests,
        and the step has no more rows than it was tried with at the start. `draw_guessed` does not
        compute the log-probabilities of given tokens."""
        running = self._scheduler.running
        every = self._requests.items()
        self._requests = {name: known for name, known in every if not known.request.is_finished()}
        for each in self._requests.values():
            each.request.spec_token_ids, each.draft = [], []
        if (
            not self._requests
            or len(running) > self._most_sequences
            or not self._has_room()
            or any(r.sampling_params and r.sampling_params.logprob_token_ids for r in running)
        ):
            return
        least_chance = self._costs.find_least_chance(len(running))
        if least_chance >= 1:
            return
        drafts = [
            (known, self._draft(known, least_chance))
            for request in running
            if (known := self._requests.get(request.request_id)) and is_decoding(request)
        ]
        room = self._scheduler.max_num_running_reqs - len(running)
        chances = [[guess.chance for guess in found] for _, found in drafts]
        counts = cut_drafts(self._costs, len(running), room, chances)
        for (known, found), count in zip(drafts, counts, strict=True):
            known.draft = found[:count]
            known.request.spec_token_ids = [guess.token for guess in known.draft]

    def _has_room(self) -> bool:
        pool, running = self._scheduler.kv_cache_manager.block_pool, self._scheduler.running
        return not self._scheduler.waiting and pool.get_num_free_blocks() >= 2 * len(running)

    def _draft(self, known: Drafted, least_chance: float) -> list[DraftToken]:
        request = known.request
        _, rule = self._locate_step(request)
        known.rule = self._rules.get(rule)
        room = min(
            request.max_tokens - request.num_output_tokens,
            self._scheduler.max_model_len - request.num_tokens,
        )
        return draft(
            known.indices,
            request._all_token_ids,
            most=min(MOST_TOKENS, room - 1),  # a token is drawn after the draft
            least_chance=least_chance,
            rates=self._rates,
            ends=known.ends_step,
        )

    def end_update(self, scheduled: SchedulerOutput) -> None:
        """Count what a step has drawn, and how many of its drafted tokens."""
        if not self._requests or find_pass(scheduled) is not None:  # a pass has other guesses
            return
        drafted = scheduled.scheduled_spec_decode_tokens
        for name in scheduled.num_scheduled_tokens:
            if (known := self._requests.get(name)) is not None:
                self._count_drawn(known, drafted.get(name, ()))

    def _count_drawn(self, known: Drafted, guesses: Collection[int]) -> None:
        tokens = known.request._all_token_ids
        if guesses:
            right = 0
            for guess, token in zip(guesses, tokens[known.counted :], strict=False):
                if guess != token:
                    break
                right += 1
            self._rates.note([guess.kind for guess in known.draft[: len(guesses)]], right)
            self.counters["accepted_tokens"] += right
        for index in known.indices:
            self._count(index, tokens, known.counted)
        known.counted = len(tokens)


def may_draft(params: Any) -> bool:
    """Whether several tokens of a request can be drawn in one step: by nothing but the model's
    logits and the noise of their positions."""
    args = read_args(params)
    return bool(
        args.get(keys.TOKEN_DRAFTS)
        and "temperature" in args
        and not args.get(keys.ENTROPY_RULE)
        and not args.get(keys.DETERMINISTIC)
        and params.structured_outputs is None
        and params.prompt_logprobs is None
        and is_plain(params)
    )


def is_decoding(request: Request) -> bool:
    return bool(
        request.status is RequestStatus.RUNNING
        and request.num_computed_tokens == request.num_tokens - 1
    )

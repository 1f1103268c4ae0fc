"""The search that a request of one of vLLM's protocols asks for, and what it adds to the answer.

vLLM's handler makes the prompt and the sampling from the body. How to search is read here.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.types import Message, Send

from flashedge import events
from flashedge.api.bodies import parse_object
from flashedge.api.failures import dump_json
from flashedge.api.paths import CHAT, MESSAGES, RESPONSES
from flashedge.api.protocols.client_habits import LIMITS, Refusals, read_int, refuse_fields
from flashedge.api.schemas import SearchOptions
from flashedge.api.specs import ModelName, build_run_spec
from flashedge.api.sse import DISCONNECTED, begins_stream, drop_length
from flashedge.engine.base import Chunk
from flashedge.engine.http_requests import RequestTags, SearchItem, SearchPrompt
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.models.specs import Pair
from flashedge.runtime.request.strategies import (
    find_defaults,
    find_user_programs,
    find_usual_strategy,
)
from flashedge.runtime.request.validation import USUAL_PATHS, Request
from flashedge.runtime.run import RunHandle, create_run_id
from flashedge.runtime.service import Service
from flashedge.scheduling.programs.program import Caller
from flashedge.search.catalog import parse_strategy
from flashedge.types import FinishReason, NodeId, Problem

_EFFORTS = {
    "none": (1 / 8, True),
    "minimal": (1 / 8, True),
    "low": (1 / 4, True),
    "medium": (1, True),
    "high": (1, False),
    "xhigh": (4, False),
    "max": (4, False),
}
"""By reasoning effort: (paths as a multiple of USUAL_PATHS, whether the search may end early). The
multiples are chosen by hand: from the fewest paths that can disagree to four times the usual."""


def _list_refusals(reason: str, neutral: tuple[Any, ...], *fields: str) -> Refusals:
    """List the refusals of `fields`. neutral: the values that change nothing."""
    hint = "leave it out, or ask the model without a search"
    return {
        field: (neutral, f"{field} can't be used with a search: {reason}", hint) for field in fields
    }


_ABSENT = "its sampler has no such option"
_END = "a path ends where the model ends it"
_LOGPROB = "a search keeps the log-probability of the drawn token alone"
_REFUSED: Refusals = {
    **_list_refusals(_ABSENT, (0,), "presence_penalty", "frequency_penalty", "min_p", "min_tokens"),
    **_list_refusals(_ABSENT, (1,), "repetition_penalty"),
    **_list_refusals(_ABSENT, ([], {}), "logit_bias", "allowed_token_ids", "bad_words"),
    **_list_refusals(_END, (False,), "ignore_eos"),
    **_list_refusals(f"{_END}; use stop", ([],), "stop_token_ids"),
    **_list_refusals("the model's name chooses the search", (False,), "use_beam_search"),
    **_list_refusals("a search generates", (0,), "prompt_logprobs"),
    **_list_refusals(_LOGPROB, ([],), "logprob_token_ids"),
    **_list_refusals(_LOGPROB, (0, 1), "top_logprobs"),
    **_list_refusals("POST /v1/runs starts a search in the background", (False,), "background"),
    **_list_refusals(_END, (), "repetition_detection"),
}
"""Fields that a search can't obey."""


class ProtocolSearch:
    """The search of one request. It is an `engine.http_requests.Searcher`."""

    def __init__(
        self,
        service: Service,
        pair: Pair,
        body: Mapping[str, Any],
        *,
        name: ModelName,
        tags: RequestTags,
        deterministic: bool = False,
    ) -> None:
        """`deterministic` applies where the body sets none. Raises RequestError."""
        self.run_id = create_run_id()
        self.model: str = body["model"]
        self._service = service
        self._pair = pair
        self._seed = tags.seed
        self._caller = Caller(client=tags.client, program=tags.program, priority=tags.priority)
        self._limits_path = any(body.get(limit) is not None for limit in LIMITS)
        self._problem: Problem | None = None
        self._handle: RunHandle | None = None
        self.result: Mapping[str, Any] | None = None
        """The run's result, once it has finished."""

        refuse_fields(body, _REFUSED)
        _refuse_budget(body, pair.max_path_tokens)
        flag = body.get("deterministic")
        self._search = {
            "deterministic": flag if isinstance(flag, bool) else deterministic,
            **apply_effort(_choose_search(body, name), body, pair),
        }
        # Raises what is wrong with the options before the handler makes the prompt.
        self._build_spec(Problem.from_text("?"), {}, sampling=pair.sampling, max_tokens=None)

    def check_admission(self) -> None:
        self._service.check_queue(self._pair.name)

    def take_conversation(self, problem: Problem) -> None:
        self._problem = problem

    def start(self, prompt: SearchPrompt) -> AsyncGenerator[SearchItem]:
        if self._problem is None:  # gpt-oss: its handler does not use the chat template
            raise RequestError(
                "a search can't follow this model's conversations",
                hint="ask the model without a search, or use POST /v1/solve",
                param="model",
            )
        guided = prompt.guidance is not None
        spec = self._build_spec(
            self._problem,
            {"answers": "json"} if guided else {},
            sampling=prompt.sampling,
            max_tokens=prompt.max_tokens if self._limits_path else None,
            prompt_ids=prompt.token_ids,
            guidance=prompt.guidance,
        )
        if prompt.choices > 1:  # choices are paths, so an early exit could leave too few
            spec = replace(spec, early_exit=None)
        if prompt.choices > spec.n:
            raise RequestError(
                f"n is {prompt.choices}, but this search completes {spec.n} paths",
                hint="ask for fewer choices, or for a search with more paths",
                param="n",
            )
        self._handle = self._service.submit(spec, run_id=self.run_id, caller=self._caller)
        return self._follow(self._handle, prompt.choices)

    def leave(self) -> None:
        """Cancel the run, unless it is over: the HTTP request has ended."""
        if self._handle is not None:
            self._handle.cancel(DISCONNECTED)

    def _build_spec(self, problem: Problem, usual: Mapping[str, Any], **fields: Any) -> Request:
        """usual: options that count where the request sets none."""
        search = {**usual, **self._search}
        return build_run_spec(problem, search, self._pair, seed=self._seed, **fields)

    async def _follow(self, handle: RunHandle, choices: int) -> AsyncGenerator[SearchItem]:
        parents: dict[NodeId, NodeId] = {}
        steps: dict[NodeId, events.StepCompleted] = {}
        async with aclosing(handle.events()) as log:
            async for _, event in log:
                match event:
                    case events.PromptRead():
                        yield event
                    case events.NodesExpanded(parent=parent, children=children):
                        parents |= {child: parent for child, *_ in children}
                    case events.StepCompleted(node=node, text=text):
                        steps[node] = event
                        yield f"[{node}] {text.strip()}\n"
                    case events.NodeScored(node=node, score=score):
                        yield f"[{node}] score {score:.3f}\n"
                    case events.RunFinished(result=result):
                        self.result = result
                        nodes = rank_paths(result)[:choices]
                        yield tuple(_join_path(node, parents, steps) for node in nodes)
                        return
                    case events.RunFailed() | events.RunCancelled():
                        await handle.result()  # raises what ended the run
        raise FlashEdgeError("the run's log ended without a result")


def _refuse_budget(body: Mapping[str, Any], usual: int) -> None:
    """Raises RequestError for a budget of thinking that a path could exceed. Agents send one that
    leaves a single token for the answer, so it limits nothing.

    usual: the most tokens of a path where the request sets no limit.
    """
    most = max((limit for name in LIMITS if (limit := read_int(body, name))), default=usual)
    thinking = body.get("thinking")
    inner = read_int(thinking, "budget_tokens") if isinstance(thinking, Mapping) else None
    given = read_int(body, "thinking_token_budget")
    for name, budget in (("thinking_token_budget", given), ("thinking", inner)):
        if budget is not None and 0 <= budget < most - 1:
            raise RequestError(
                f"a search can't end a path's thinking after {budget} tokens",
                hint="leave the budget out, lower max_tokens, or ask the model without a search",
                param=name,
            )


def _choose_search(body: Mapping[str, Any], name: ModelName) -> dict[str, Any]:
    """The options of the `search` object, else of the model's name.

    Raises NotFound, RequestError.
    """
    if body.get("search") is None:
        return name.search or {}
    if name.search is not None:
        raise RequestError(
            "both the model's name and the field search choose a search",
            hint="leave one out",
            param="search",
        )
    options = parse_object(body["search"], SearchOptions, "search").collect_options()
    if "strategy" in options:
        parse_strategy(options["strategy"], find_user_programs())
    return options


def apply_effort(search: dict[str, Any], body: Mapping[str, Any], pair: Pair) -> dict[str, Any]:
    """Let the request's reasoning effort choose what the options leave open: the number of paths,
    and whether the search may end early."""
    effort = body.get("reasoning_effort")
    for holder in ("reasoning", "output_config"):  # of responses and of messages
        if effort is None and isinstance(body.get(holder), Mapping):
            effort = body[holder].get("effort")
    if not isinstance(effort, str) or effort not in _EFFORTS:
        return search  # the handler refuses an unknown one
    factor, may_exit = _EFFORTS[effort]
    strategy = search.get("strategy", find_usual_strategy(pair.verifier.judges, pair.judge))
    chosen = {"early_exit": may_exit, "n": round(USUAL_PATHS * factor)}
    usual = find_defaults(strategy)
    return {**{name: v for name, v in chosen.items() if name not in usual}, **search}


def rank_paths(result: Mapping[str, Any]) -> list[NodeId]:
    """The nodes in which a result's paths end: the answer's, then the others, best first by score,
    or by confidence without scores. A result without completed paths has the chosen node alone."""
    choice = result["choice"]
    others = [path for path in result["completions"] if path["node"] != choice]
    others.sort(key=lambda p: (-(p.get("score") or p.get("confidence") or 0.0), p["node"]))
    return [choice, *(path["node"] for path in others)]


def _join_path(
    node: NodeId, parents: Mapping[NodeId, NodeId], steps: Mapping[NodeId, events.StepCompleted]
) -> Chunk:
    path = []
    while node in steps:
        path.append(steps[node])
        node = parents[node]
    path.reverse()
    return Chunk(
        token_ids=tuple(token for step in path for token in step.token_ids),
        logprobs=tuple(p for step in path for p in step.logprobs),
        finish=FinishReason(path[-1].finish) if path else FinishReason.LENGTH,
    )


_END_MARKS = {
    CHAT: b'"finish_reason":"',
    RESPONSES: b'"type":"response.completed"',
    MESSAGES: b'"type":"message_delta"',
}
"""What only an event that ends a choice contains: quotation marks within texts are escaped."""


def add_result(search: ProtocolSearch, path: str, send: Send) -> Send:
    """A `send` that adds to an answer what only a search has: its id in the header
    X-FlashEdge-Run, and the object `flashedge`. A stream has that object in the first event that
    ends a choice. Errors and counts of tokens stay as they are."""
    is_stream, is_done = False, False

    async def adding(message: Message) -> None:
        nonlocal is_stream, is_done
        if message["type"] == "http.response.start":
            if path not in _END_MARKS or message["status"] != 200:
                is_done = True
            else:
                is_stream = begins_stream(message)
                message = drop_length(message)
                message["headers"].append((b"x-flashedge-run", search.run_id.encode()))
        elif not is_done and search.result is not None and (body := message.get("body")):
            mark = b"{" if not is_stream else _END_MARKS[path]
            if mark in body:
                is_done = True
                message = {**message, "body": _insert(body, mark, search.result, is_stream)}
        await send(message)

    return adding


def _insert(body: bytes, mark: bytes, result: Mapping[str, Any], is_stream: bool) -> bytes:
    """Put `flashedge` first in the JSON object of the whole body, or of the event with the mark.

    `flashedge` holds part of the result; GET /v1/runs/{run_id} has all.
    """
    start = 0
    if is_stream:  # JSON has no line breaks, so this is where the event begins
        start = (b"\n" + body).rindex(b"\ndata: {", 0, body.index(mark) + 1)
    at = body.index(b"{", start) + 1
    names = (
        "strategy",
        "n",
        "seed",
        "answer",
        "votes",
        "certainty",
        "trusted",
        "cut_by",
        "unlikely",
        "unboxed",
        "usage",
        "timing",
    )
    about = {"run_id": result["id"], **{name: result.get(name) for name in names}}
    return body[:at] + b'"flashedge":' + dump_json(about) + b"," + body[at:]

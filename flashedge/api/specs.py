"""From checked bodies to what the runtime is asked: RunSpec and ChatSpec."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

from flashedge.api.contract import Defaults
from flashedge.api.schemas import ASKS_NOTHING, ChatBody, SolveBody
from flashedge.errors import NotFound, RequestError
from flashedge.runtime.chat import ChatSpec
from flashedge.runtime.request.checks import check_int
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.request.strategies import defaults_of, watched_options
from flashedge.types import MAX_SEED, Problem, Sampling

_SUFFIX = re.compile(r"(?P<strategy>[a-z]+(?:[_-][a-z]+)*)(?:-(?P<n>[0-9]{1,6}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A model as a client names it: a pair, or pair:strategy-n (bundled:beam-16)."""

    pair: str
    search: dict[str, Any] | None

    @classmethod
    def parse(cls, name: str, served: str) -> ModelName:
        """Raises NotFound."""
        pair, colon, suffix = name.partition(":")
        match = _SUFFIX.fullmatch(suffix)
        if pair != served or (colon and match is None):
            raise NotFound(
                f"there is no model {name!r}",
                hint=f"this daemon serves {served!r} (search: {served}:beam-16)",
                param="model",
            )
        if match is None:
            return cls(pair=pair, search=None)
        search: dict[str, Any] = {"strategy": match["strategy"].replace("-", "_")}
        if match["n"] is not None:
            search["n"] = int(match["n"])
        return cls(pair=pair, search=search)


def solve_spec(body: SolveBody, pair: str, defaults: Defaults) -> RunSpec:
    """Raises RequestError naming the first field that is wrong."""
    if (body.problem is None) == (body.messages is None):
        raise RequestError("give either problem or messages", param="problem")
    if body.messages is not None:
        problem = Problem(messages=tuple(m.message for m in body.messages))
    else:
        problem = Problem.from_text(body.problem or "")
    return _run_spec(
        problem, body.pair or pair, body, body.given(), body.max_tokens, body.seed, defaults
    )


def chat_search_spec(
    body: ChatBody, model: ModelName, search: dict[str, Any], defaults: Defaults
) -> RunSpec:
    """The run that a chat completion by search asks for. Raises RequestError."""
    if (body.n or 1) != 1:
        raise RequestError(
            f"n is {body.n}; a search gives one choice", hint="set search.n for paths", param="n"
        )
    if body.stop:
        raise RequestError("stop is not supported with a search", param="stop")
    problem = Problem(messages=tuple(m.message for m in body.messages))
    seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed
    return _run_spec(problem, model.pair, body, search, _max_tokens(body), seed, defaults)


def chat_spec(body: ChatBody, defaults: Defaults) -> ChatSpec:
    """Raises RequestError."""
    return ChatSpec(
        messages=tuple(m.message for m in body.messages),
        sampling=_sampling(body, defaults),
        seed=body.seed,
        max_tokens=_max_tokens(body),
        stop=body.stop or (),
        n=1 if body.n is None else body.n,
    )


def search_of(body: ChatBody, model: ModelName) -> dict[str, Any] | None:
    """The search that the model's suffix or the `search` object asks for; None: plain."""
    if body.search is None:
        return model.search
    if model.search is not None:
        raise RequestError("the model's suffix already names a search", param="search")
    return body.search.given()


def refuse_unsupported(body: ChatBody) -> None:
    """Raises RequestError for an OpenAI feature that is not served but would change the answer."""
    for name, harmless in ASKS_NOTHING.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise RequestError(f"{name} is not supported", hint="leave it out", param=name)
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")


def _run_spec(
    problem: Problem,
    pair: str,
    body: SolveBody | ChatBody,
    search: dict[str, Any],
    max_tokens: int | None,
    seed: int | None,
    defaults: Defaults,
) -> RunSpec:
    if max_tokens is not None:
        check_int("max_tokens", max_tokens, 1, 1 << 20)
    strategy = search.get("strategy", "beam")
    usual = defaults_of(strategy)
    filled = {"max_step_tokens": defaults.max_step_tokens, **usual, **search}
    if isinstance(strategy, str) and (own := defaults.options.get(strategy)):
        filled["options"] = {**own, **filled.get("options", {})}
    if isinstance(exits := search.get("early_exit"), bool | dict):
        filled["early_exit"] = _exit_options(exits)
    if filled.get("early_exit") and (watched := watched_options(strategy, filled.get("n"))):
        filled["options"] = {**watched, **filled.get("options", {})}
    return RunSpec(
        problem=problem,
        pair=pair,
        seed=0 if seed is None else seed,
        sampling=_sampling(body, defaults),
        max_path_tokens=defaults.max_path_tokens if max_tokens is None else max_tokens,
        **filled,
    )


def _exit_options(given: bool | dict[str, Any]) -> ExitOptions | None:
    if isinstance(given, dict):
        return ExitOptions.from_json(given)
    return ExitOptions() if given else None


def _sampling(body: SolveBody | ChatBody, defaults: Defaults) -> Sampling:
    usual = defaults.sampling
    return Sampling(
        temperature=usual.temperature if body.temperature is None else body.temperature,
        top_p=usual.top_p if body.top_p is None else body.top_p,
        top_k=usual.top_k if body.top_k is None else body.top_k,
    )


def _max_tokens(body: ChatBody) -> int | None:
    """OpenAI has two names for it."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            "max_tokens and max_completion_tokens differ; give one", param="max_tokens"
        )
    return old if new is None else new

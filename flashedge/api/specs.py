"""What a request asks of the runtime, and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.requests import Request as HttpRequest

from flashedge.api.schemas import SolveBody
from flashedge.client.protocol import LONGEST_NAME
from flashedge.errors import NotFound, RequestError
from flashedge.models.registry import split_name
from flashedge.models.specs import Pair
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.strategies import (
    find_defaults,
    find_user_programs,
    find_usual_strategy,
    find_watched_options,
    stops_by_votes,
)
from flashedge.runtime.request.validation import Request
from flashedge.runtime.request.values import check_field
from flashedge.scheduling.programs.program import Caller
from flashedge.search.catalog import parse_strategy
from flashedge.types import Problem, Sampling

MAX_PRIORITY = (1 << 30) - 1


class ModelName(NamedTuple):
    """The model of a request: a pair, or a pair with a search (bundled:beam-16)."""

    pair: str
    search: dict[str, Any] | None
    """The search options in the name. None for plain chat."""

    suffix: str = ""
    """The search as the name has it, with the colon."""

    def write(self, pair: str) -> str:
        """Write the name with another name of the pair."""
        return pair + self.suffix

    @classmethod
    def parse(cls, name: str) -> ModelName:
        """Split a model's name. The pair is not checked. Raises NotFound for an unknown search."""
        pair, suffix = split_name(name)
        if suffix is None:
            return cls(pair=pair, search=None)
        try:
            strategy, n = parse_strategy(suffix, find_user_programs())
        except NotFound as error:
            raise NotFound(
                f"there is no model {name!r}: {error}",
                hint=error.hint or f"a search is named like {pair}:beam-16",
                param="model",
            ) from error
        search: dict[str, Any] = {"strategy": strategy}
        search = search if n is None else search | {"n": n}
        return cls(pair=pair, search=search, suffix=f":{suffix}")


def parse_pair(model: str | None) -> str | None:
    """The pair whose verifier a request names. Raises RequestError for a search."""
    if model is None:
        return None
    name = ModelName.parse(model)
    if name.search is not None:
        raise RequestError(
            f"{model!r} is a search, but a verifier scores without one",
            hint=f"name the pair alone: {name.pair}",
            param="model",
        )
    return name.pair


def build_solve_spec(body: SolveBody, pair: Pair, *, deterministic: bool) -> Request:
    """`deterministic` applies where the body sets none. Raises RequestError for a wrong field."""
    if (body.problem is None) == (body.messages is None):
        raise RequestError("give either problem or messages", param="problem")
    if body.messages is not None:
        problem = Problem(messages=tuple(m.message for m in body.messages))
    else:
        problem = Problem.from_text(body.problem or "")
    names = ("temperature", "top_p", "top_k")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    return build_run_spec(
        problem,
        {"deterministic": deterministic, **body.collect_options()},
        pair,
        sampling=replace(pair.sampling, **given),
        max_tokens=body.max_tokens,
        seed=0 if body.seed is None else body.seed,
        chat_template_kwargs=body.chat_template_kwargs or {},
    )


def build_run_spec(
    problem: Problem,
    search: Mapping[str, Any],
    pair: Pair,
    *,
    sampling: Sampling,
    max_tokens: int | None,
    **fields: Any,
) -> Request:
    """A search's request, with the defaults of the pair and the strategy. Raises RequestError.

    search: options of `SearchOptions`. max_tokens: of a path; None means the pair's limit. fields:
    further fields of `Request`.
    """
    if max_tokens is not None:
        check_field("max_tokens", max_tokens)
    strategy = search.get("strategy", find_usual_strategy(pair.verifier.judges, pair.judge))
    usual = {"strategy": strategy, **find_defaults(strategy)}
    if search.get("answers") == "whole":
        usual["selection"] = "best"
    filled = {
        "max_step_tokens": pair.max_step_tokens,
        "step_rule": pair.step_rule,
        "step_entropy": pair.step_entropy,
        "min_step_tokens": pair.min_step_tokens,
        "judge": pair.judge,
        **usual,
        **search,
    }
    if own := pair.options.get(strategy):
        filled["options"] = {**own, **filled.get("options", {})}
    if isinstance(exits := search.get("early_exit"), dict):
        filled["early_exit"] = ExitOptions.from_json(exits)
    elif isinstance(exits, bool):
        filled["early_exit"] = ExitOptions() if exits else None
    elif stops_by_votes(strategy, filled.get("selection"), filled.get("answers")):
        filled["early_exit"] = ExitOptions()
    if filled.get("early_exit") and (watched := find_watched_options(strategy, filled.get("n"))):
        filled["options"] = {**watched, **filled.get("options", {})}
    return Request(
        problem=problem,
        pair=pair.name,
        sampling=sampling,
        max_path_tokens=pair.max_path_tokens if max_tokens is None else max_tokens,
        **fields,
        **filled,
    )


def read_caller(request: HttpRequest, priority: int) -> Caller:
    """The client, by X-FlashEdge-Client or its address, and its program, by X-FlashEdge-Program."""
    address = request.client.host if request.client else "unknown"
    client = shorten(request.headers.get("x-flashedge-client") or address)
    return Caller(
        client=client,
        program=name_program(client, request.headers.get("x-flashedge-program")),
        priority=limit_priority(priority),
    )


def name_program(client: str, name: str | None) -> str | None:
    """The key of a program. Clients that choose the same name have different programs."""
    return f"{shorten(name)} of {client}" if name else None


def shorten(name: str) -> str:
    """Cut a name. It is kept as long as its program, so long ones could fill the memory."""
    return name[:LONGEST_NAME]


def limit_priority(priority: int) -> int:
    """Bound a priority. Drafts have 2**30, so an engine that lacks KV drops them first."""
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))

"""Passes requests of agents' protocols on to vLLM's own handlers. Only what the guard has checked
comes here.

What a request asks of the scheduler, and which search it names, are read here first.

| tag | where it stands |
|---|---|
| client | X-FlashEdge-Client, else user, safety_identifier or metadata.user_id, else the address |
| program | X-FlashEdge-Program, else prompt_cache_key |
| priority, seed, deterministic | the fields of these names |
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flashedge.api import sse
from flashedge.api.bodies import load_object, parse_keep_alive, replay_body
from flashedge.api.failures import RETRY_AFTER_S, Refusal, build_error_response, dump_json
from flashedge.api.pairs import ServablePairs
from flashedge.api.paths import CHAT, COMPLETIONS, MESSAGES, PROTOCOL_ROUTES, RESPONSES, SCORES
from flashedge.api.protocols.client_habits import normalize, read_int, steady_prompt
from flashedge.api.protocols.error_bodies import StreamFailures, build_protocol_error, rewrite_error
from flashedge.api.protocols.search import ProtocolSearch, add_result
from flashedge.api.specs import ModelName, limit_priority, name_program, parse_pair, shorten
from flashedge.engine.http_requests import RequestTags, tag_requests
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.models.specs import Pair
from flashedge.runtime.service import Service
from flashedge.types import MAX_SEED

ROUTES = frozenset({*PROTOCOL_ROUTES, *SCORES})
SOLUTION_FIELDS = frozenset({"problem", "solution", "steps"})
PAIR_FIELDS = frozenset({"text_1", "text_2", "queries", "documents", "items", "data_1", "data_2"})
"""The fields of vLLM's own requests for scores."""
_REASONING = re.compile(rb'(?<!\\)"reasoning":("(?:[^"\\]|\\.)*"|null)')
"""A field of JSON. Within a text its quotation marks would be escaped."""


class ProtocolSwitch:
    """The middleware. All other routes go on to `app`."""

    def __init__(
        self, app: ASGIApp, *, service: Service, pairs: ServablePairs, steady: bool
    ) -> None:
        """steady: the feature `steady_prompts`."""
        self._app = app
        self._steady = steady
        self._service = service
        self._pairs = pairs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in ROUTES:
            await self._app(scope, receive, send)
            return
        text: bytes = (await receive())["body"]  # the guard sends it whole
        search = None
        try:
            body = load_object(Headers(scope=scope), text)
            if scope["path"] in SCORES and not scores_pairs(body):
                await self._app(scope, replay_body(text, receive), send)
                return
            model = body.get("model")  # vLLM's handler decides what a missing one means
            name = ModelName.parse(model) if isinstance(model, str) else None
            pair = self._pairs.find(None if name is None else name.pair)
            if name is not None:  # vLLM's handler knows the pair by its own name alone
                body["model"] = name.write(pair.name)
            if scope["path"] in SCORES:
                check_pairs(body, pair)
            else:
                normalize(scope["path"], body, pair.generator)
                if self._steady:
                    steady_prompt(body)
            receive = replay_body(dump_json(body), receive)
            tags = read_tags(scope, body)
            if body.get("search") is not None or (name is not None and name.search is not None):
                search = self._build_search(scope["path"], body, name, pair, tags)
                send = add_result(search, scope["path"], send)
            self._service.idle.keep_alive(parse_keep_alive(body.get("keep_alive")))
            async with (
                self._service.use_pair(pair.name) as served,
                tag_requests(tags, search) as request,
                sse.keep_alive(send) as sending,
            ):
                answer = StreamFailures(request, scope["path"], sending)
                rewriting = rewrite_error(
                    answer.send,
                    lambda error, status: build_protocol_error(error, status, request.failure),
                )
                if tags.deterministic and search is None:  # a search waits in its run
                    await served.wait_tested()
                try:
                    await served.protocols(scope, receive, _translate(scope, rewriting))
                except Exception:  # the handler may have left its stream open
                    if not await answer.end():
                        raise
        except FlashEdgeError as error:
            await build_error_response(error)(scope, receive, send)
        except (OSError, ClientDisconnect):
            pass  # nobody reads an answer
        finally:
            if search is not None:
                search.leave()

    def _build_search(
        self,
        path: str,
        body: Mapping[str, Any],
        name: ModelName | None,
        pair: Pair,
        tags: RequestTags,
    ) -> ProtocolSearch:
        if path == COMPLETIONS:
            raise Refusal(
                400,
                "unsupported",
                f"{path} continues a text, but a search answers a conversation",
                hint=f"searches work in {CHAT}, {RESPONSES} and {MESSAGES}",
                param="model",
            )
        if name is None:
            raise RequestError("model is missing", param="model")
        return ProtocolSearch(
            self._service, pair, body, name=name, tags=tags, deterministic=self._pairs.deterministic
        )


def scores_pairs(body: Mapping[str, Any]) -> bool:
    """Whether a request for scores has vLLM's own form."""
    return not SOLUTION_FIELDS & body.keys() and bool(PAIR_FIELDS & body.keys())


def check_pairs(body: Mapping[str, Any], pair: Pair) -> None:
    """Raises RequestError where the verifier can't score pairs of texts as vLLM does."""
    model = body.get("model")
    parse_pair(model if isinstance(model, str) else None)
    if not pair.has_verifier:
        raise RequestError(
            f"{pair.name!r} has no verifier", hint="use a pair with one", param="model"
        )
    if not pair.verifier.scores_pairs:
        raise RequestError(
            f"the verifier of {pair.name!r} scores no pairs of texts: vLLM does that with"
            " classifiers of one label",
            hint="send problem and solution, or steps, for its own scores",
            param=min(PAIR_FIELDS & body.keys()),
        )


def read_tags(scope: Scope, body: Mapping[str, Any]) -> RequestTags:
    """The tags of a request. A field of a wrong type counts as left out: the handler refuses it."""
    headers = Headers(scope=scope)
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    address = (scope.get("client") or ("unknown",))[0]
    seed = read_int(body, "seed")
    names = body.get("user"), body.get("safety_identifier"), user
    client = _choose_name(headers.get("x-flashedge-client"), *names) or str(address)
    program = _choose_name(headers.get("x-flashedge-program"), body.get("prompt_cache_key"))
    return RequestTags(
        client=client,
        program=name_program(client, program),
        seed=secrets.randbelow(MAX_SEED) if seed is None else seed & MAX_SEED,
        is_seeded=seed is not None,
        priority=limit_priority(read_int(body, "priority") or 0),
        deterministic=body.get("deterministic") is True,
        continues=scope["path"].startswith(MESSAGES) and ends_with_prefill(body),
    )


def ends_with_prefill(body: Mapping[str, Any]) -> bool:
    """Whether a request's last message is the assistant's text, which the answer continues."""
    turns = body.get("messages")
    last = turns[-1] if isinstance(turns, list) and turns else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        return False
    content = last.get("content")
    if not isinstance(content, list):
        return isinstance(content, str) and bool(content)
    kinds = [part.get("type") for part in content if isinstance(part, Mapping)]
    return kinds[-1:] == ["text"] and "tool_use" not in kinds


def _choose_name(*names: Any) -> str | None:
    """Choose the first value that is a name, and cut it (`shorten`)."""
    return next((shorten(n) for n in names if isinstance(n, str) and n), None)


def _translate(scope: Scope, send: Send) -> Send:
    """A `send` that adds what vLLM's answers lack: Retry-After with 503, and in chat the thinking
    as `reasoning_content`, which some clients read in place of `reasoning`."""
    doubles_reasoning = scope["path"] == CHAT

    async def translating(message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] == 503:
                retry = (b"retry-after", str(RETRY_AFTER_S).encode())
                message = {**message, "headers": [*message["headers"], retry]}
            message = sse.drop_length(message) if doubles_reasoning else message
        elif doubles_reasoning and b'"reasoning":' in (body := message.get("body", b"")):
            doubled = _REASONING.sub(rb'"reasoning":\1,"reasoning_content":\1', body)
            message = {**message, "body": doubled}
        await send(message)

    return translating

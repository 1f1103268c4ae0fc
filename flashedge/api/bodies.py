"""Parse request bodies: JSON without NaN that matches a schema. Errors name the wrong field."""

import difflib
import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive

from flashedge.api.failures import Refusal, reword
from flashedge.errors import RequestError

B = TypeVar("B", bound=BaseModel)
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""What may be half a surrogate pair: an escape of JSON, or a surrogate encoded in the body."""
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


async def read_body(request: Request, kind: type[B]) -> B:
    """The request's body. Raises RequestError naming the first thing that is wrong."""
    return parse_object(load_object(request.headers, await request.body()), kind)


def parse_object(data: Any, kind: type[B], name: str | None = None) -> B:
    """Check a body, or the object in its field `name`. Raises RequestError."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _describe_error(error, kind, () if name is None else (name,)) from None


def load_object(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises Refusal."""
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        # a web page can send other content types to any site without permission
        raise Refusal(
            415,
            "unsupported_media_type",
            f"the content type is {media!r}",
            hint="send JSON with `Content-Type: application/json`",
        )
    if not body.strip():
        raise _refuse_json("the body is empty; send a JSON object")
    try:
        text = body.decode("utf-8", "surrogatepass")
        data = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
        data = replace_halves(data) if _HALF.search(text) else data
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise _refuse_json(f"malformed JSON: {error.msg} at {where}") from None
    except UnicodeError:
        raise _refuse_json("the body is not valid Unicode") from None
    except RecursionError:
        raise _refuse_json("the JSON is nested too deeply") from None
    except ValueError:
        raise _refuse_json("a number in the JSON is too long") from None
    if not isinstance(data, dict):
        raise _refuse_json("the body must be a JSON object")
    return data


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns `body` once, and then what the server sends: the disconnect."""
    whole: Message = {"type": "http.request", "body": body, "more_body": False}
    messages = iter([whole])

    async def replay() -> Message:
        return next(messages, None) or await receive()

    return replay


def _refuse_json(message: str) -> Refusal:
    return Refusal(400, "invalid_json", message)


def replace_halves(data: Any) -> Any:
    """JSON in which each half of a surrogate pair is U+FFFD.

    A client that cuts a text within an emoji leaves a half, which every later turn sends again.
    """
    text = json.dumps(data, ensure_ascii=False)
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return data if whole == text else json.loads(whole)


def _refuse_constant(name: str) -> Any:
    raise _refuse_json(f"{name} is not a JSON number; give a finite one")


def _parse_finite(text: str) -> float:
    """Refuse a number such as 1e999, which Python would read as infinity."""
    value = float(text)
    if math.isinf(value):
        raise _refuse_json(f"{text[:20]} is too large; give a finite number")
    return value


def _describe_error(
    error: ValidationError, kind: type[BaseModel], inside: tuple[str, ...]
) -> RequestError:
    first = error.errors(include_url=False)[0]
    param = _format_location((*inside, *first["loc"]))
    match first["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(first["loc"][-1]), kind.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near and len(first["loc"]) == 1 else None
            return RequestError(f"unknown field {param!r}", param=param, hint=hint)
        case "missing":
            return RequestError(f"{param} is missing", param=param)
        case "none_required" | "too_long":
            return RequestError(f"{param} is not supported here", param=param)
        case "finite_number":
            return RequestError(f"{param} must be a finite number", param=param)
        case _:
            return RequestError(f"{param}: {reword(first['msg'])}", param=param)


def _format_location(loc: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") -> messages[0].role"""
    text = ""
    for part in loc:
        if part in ("float", "str"):  # pydantic's name for one type of a field that takes several
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def describe_body(kind: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI `requestBody` of an operation that calls `read_body`."""
    content = {"application/json": {"schema": inline_schema(kind)}}
    return {"requestBody": {"required": True, "content": content}}


def inline_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model, without references."""
    schema = kind.model_json_schema()
    return dict(_inline(schema, schema.pop("$defs", {})))


def _inline(node: Any, shared: dict[str, Any]) -> Any:
    """`node` with each reference replaced by the shared definition."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(shared[node["$ref"].rsplit("/", 1)[-1]], shared)
        return {k: _inline(v, shared) for k, v in node.items()}
    return [_inline(v, shared) for v in node] if isinstance(node, list) else node


def parse_keep_alive(value: Any) -> float | None:
    """The seconds of the field `keep_alive`: a number, or a text such as "90", "10m" or "1h30m".

    A negative number means forever. Returns None for null. Raises RequestError.
    """
    if value is None:
        return None
    seconds: Any = _parse_duration(value) if isinstance(value, str) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not abs(seconds) <= sys.float_info.max:  # so NaN is refused too
        raise RequestError(
            f"keep_alive is {value!r}",
            hint='give seconds, or a text such as "10m"; 0 unloads at once, -1 never',
            param="keep_alive",
        )
    return float(seconds)


def _parse_duration(text: str) -> float | None:
    """The seconds of a text, None if it is no duration."""
    text = text.strip()
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.removeprefix("-")
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return sign * float(text)
    if not text or _PART.sub("", text):
        return None
    return sign * sum(float(count) * _UNIT_S[unit] for count, unit in _PART.findall(text))

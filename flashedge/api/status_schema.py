"""What /openapi.json says of the reply of /v1/status. `contract.ServicePort` says what it means."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from flashedge.profiler.card_watch import CardUser
from flashedge.runtime.recent_latency import PERCENTILES
from flashedge.scheduling.programs.standing import Standing
from flashedge.scheduling.rollouts.standing import BoostStanding
from flashedge.types import POLICY_NAMES


def describe_status() -> dict[int | str, dict[str, Any]]:
    """The OpenAPI `responses` of the route."""
    scheduling = {
        "type": "object",
        "description": "How programs are ordered, and how they stand, the first to go first.",
        "required": ["policy", "programs", "boosts", "boost_running_s", "boost_open_s"],
        "properties": {
            "policy": {"type": "string", "enum": list(POLICY_NAMES)},
            "programs": {"type": "array", "items": TypeAdapter(Standing).json_schema()},
            "boosts": {"type": "array", "items": TypeAdapter(BoostStanding).json_schema()},
            "boost_running_s": {"type": "number"},
            "boost_open_s": {"type": "number"},
        },
    }
    pair = {
        "type": "object",
        "required": ["state", "detail", "engines", "runs"],
        "properties": {
            "state": {"type": "string"},
            "detail": {"type": ["string", "null"]},
            "engines": {"type": "object"},
            "runs": {"type": "object", "additionalProperties": {"type": "integer"}},
            "card_users": {"type": "array", "items": TypeAdapter(CardUser).json_schema()},
        },
    }
    percentiles = {
        "type": ["object", "null"],
        "description": "Seconds of half (p50), nine tenths (p90) and all but a hundredth (p99).",
        "properties": {f"p{p}": {"type": "number"} for p in PERCENTILES},
    }
    latency = {
        "type": "object",
        "description": "How fast the last chats and runs that finished were: until the first token,"
        " and for each token after it (of a run: of its whole tree).",
        "additionalProperties": {
            "type": "object",
            "properties": {
                "requests": {"type": "integer"},
                "first_token_s": percentiles,
                "token_s": percentiles,
            },
        },
    }
    pairs = {
        "type": "object",
        "description": "The loaded pairs, or the default one: their engines, and their runs that"
        " are queued and running.",
        "additionalProperties": pair,
    }
    schema = {
        "type": "object",
        "required": ["state", "pairs", "scheduling"],
        "properties": {
            "state": {"type": "string"},
            "pairs": pairs,
            "scheduling": scheduling,
            "latency": latency,
        },
    }
    content = {"application/json": {"schema": schema}}
    return {200: {"description": "The daemon's state and load.", "content": content}}

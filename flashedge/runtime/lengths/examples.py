"""Files of requests whose lengths are known, and what of them is held out from training.

A line is an object like {"prompt": "…", "lengths": [312, 288], "cut": [false, false]}. cut
may be missing where no output was cut. weights, kind and max_tokens are optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError
from flashedge.runtime.lengths.base import EncodePrompt, encode_nothing, join_turns
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import PLAIN, FinishedOutputs, LengthRequest
from flashedge.types import Message

HELD_OUT_SHARE = 5
"""One prompt of so many is held out."""
_HINT = (
    'each line is an object like {"prompt": "What is 12 + 7?", "lengths": [31, 29], '
    '"cut": [false, true]}'
)


def read_file(
    path: Path, pair: str, encode: EncodePrompt = encode_nothing
) -> list[FinishedOutputs]:
    """Read a file of lengths. Raises ConfigError naming the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"can't read {path}: {reason}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_parse(json.loads(line), pair, encode))
            except (KeyError, TypeError, ValueError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                if isinstance(error, json.JSONDecodeError):
                    reason = "not JSON"
                raise ConfigError(f"{path}, line {number}: {reason}", hint=_HINT) from error
    if not found:
        raise ConfigError(f"{path} holds no lengths", hint=_HINT)
    return found


def split(
    finished: Sequence[FinishedOutputs],
) -> tuple[list[FinishedOutputs], list[FinishedOutputs]]:
    """Split into training and held-out requests, in their order.

    The prompt alone decides, so that no model was ever trained on a prompt that is held out for
    another one.
    """
    parts: tuple[list[FinishedOutputs], list[FinishedOutputs]] = ([], [])
    for one in finished:
        parts[int(one.request.prompt_key, 16) % HELD_OUT_SHARE == 0].append(one)
    return parts


def merge_prompts(finished: Sequence[FinishedOutputs]) -> list[FinishedOutputs]:
    """Put the runs of each prompt together, in the order in which the prompts first ran."""
    found: dict[str, FinishedOutputs] = {}
    for one in finished:
        key = one.request.prompt_key
        before = found.get(key)
        lengths = one.lengths if before is None else _join(before.lengths, one.lengths)
        found[key] = FinishedOutputs(request=one.request, lengths=lengths)
    return list(found.values())


def _join(first: OutputLengths, second: OutputLengths) -> OutputLengths:
    return OutputLengths(
        tokens=first.tokens + second.tokens,
        is_censored=first.is_censored + second.is_censored,
        weights=first.weights + second.weights,
    )


def _parse(fields: Any, pair: str, encode: EncodePrompt) -> FinishedOutputs:
    """Raises KeyError, TypeError, ValueError."""
    if not isinstance(fields, Mapping):
        raise ValueError("not an object")
    prompt, tokens = fields["prompt"], fields["lengths"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("prompt is not a text")
    if not isinstance(tokens, list) or not tokens:
        raise ValueError("lengths is not a list of numbers")
    if not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
        raise ValueError("lengths must be integers")
    cut = fields.get("cut") or [False] * len(tokens)
    weights = fields.get("weights") or [1.0] * len(tokens)
    lengths = OutputLengths(
        tokens=tuple(tokens), is_censored=tuple(map(bool, cut)), weights=tuple(map(float, weights))
    )
    if lengths.num_outputs <= 0:
        raise ValueError("weights must add up to more than 0")
    turns = (Message(role="user", content=prompt),)
    return FinishedOutputs(
        request=LengthRequest(
            pair=pair,
            kind=str(fields.get("kind", PLAIN)),
            prompt_ids=encode(turns),
            text=join_turns(turns),
            outputs=round(lengths.num_outputs),
            max_tokens=int(fields.get("max_tokens", max(tokens))),
        ),
        lengths=lengths,
    )

"""What every predictor of lengths can do.

A predictor says how long *one output* of a request will be: an answer, or a path of a search.
It knows nothing of queues. `prediction_queue.py` calls it in a thread of its own.

Ref: arXiv 2604.00499 §3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from flashedge.runtime.request.request import Request
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.request import PLAIN, FinishedOutputs, LengthRequest
from flashedge.types import Message, TokenIds

EncodePrompt = Callable[[Sequence[Message]], TokenIds]
"""Turns a conversation into the generator's tokens."""


def encode_nothing(messages: Sequence[Message]) -> TokenIds:
    """An EncodePrompt for whoever needs no tokens."""
    return ()


class LengthPredictor(Protocol):
    """Predicts lengths and learns from what ended. Only one thread calls it at a time."""

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        """One distribution for each request. None where the predictor knows too little."""
        ...

    def learn(self, finished: FinishedOutputs) -> None:
        """Take the outputs of a request into account that is over."""
        ...

    def explain(self, request: LengthRequest) -> str:
        """Say in plain English what is predicted of a request, and why."""
        ...


def join_turns(messages: Sequence[Message]) -> str:
    """Write a conversation as one text."""
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


def describe_search(spec: Request, prompt_ids: TokenIds = (), client: str = "") -> LengthRequest:
    """Describe a search. prompt_ids: its prompt; empty where it has not been encoded."""
    return LengthRequest(
        pair=spec.pair,
        kind=spec.strategy,
        prompt_ids=prompt_ids or spec.prompt_ids or (),
        text=join_turns(spec.problem.messages),
        outputs=spec.n,
        max_tokens=spec.max_path_tokens,
        step_rule=spec.step_rule,
        client=client,
    )


def describe_plain(
    pair: str, prompt_ids: TokenIds, *, max_tokens: int, outputs: int = 1, client: str = ""
) -> LengthRequest:
    """Describe a request outside any search."""
    return LengthRequest(
        pair=pair,
        kind=PLAIN,
        prompt_ids=prompt_ids,
        outputs=outputs,
        max_tokens=max_tokens,
        client=client,
    )

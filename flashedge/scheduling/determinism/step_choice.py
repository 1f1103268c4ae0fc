"""Which kind of step an engine takes next while it has deterministic requests.

A pass belongs to deterministic requests alone, so everyone else waits for it. Where others wait,
at most one pass comes between two of their steps: what they lose is bounded by one pass.

Ref: arXiv 2601.17768 §4.3. Departures: ADR 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_WAIT = 4
"""Most shared steps that a full window waits for others to be verified with it."""


class StepKind(StrEnum):
    SHARED = "shared"
    """vLLM's own step: prefill and decode of all other requests, and the decode of deterministic
    ones, whose tokens are candidates until they are verified."""
    PREFILL = "prefill"
    """A pass over a part of one deterministic request's prompt."""
    VERIFY = "verify"
    """A pass over the windows of up to G deterministic requests, which draws their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """An engine's requests between two steps."""

    can_prefill: bool
    """Whether a deterministic request has prompt to compute, and a place in the batch."""
    ready: int
    """Windows that can be verified."""
    waited: int
    """Shared steps that the oldest of these has waited."""
    is_joined: bool
    """Whether another window may be full within `MAX_WAIT` shared steps."""
    can_share: bool
    """Whether a shared step has anything to do."""
    others: bool
    """Whether it has other than deterministic requests to do."""
    last: StepKind
    """The kind of the step before."""
    last_pass: StepKind
    """The kind of the pass before."""


def choose_step(state: BatchState, group: int) -> StepKind:
    """Choose the next step. Where both kinds of pass are due they take turns."""
    waits = state.waited < MAX_WAIT and (state.is_joined or state.can_prefill)
    is_due = state.ready >= group or (state.ready > 0 and not waits)
    if not state.others or state.last is StepKind.SHARED:
        if state.can_prefill and not (is_due and state.last_pass is StepKind.PREFILL):
            return StepKind.PREFILL
        if is_due:
            return StepKind.VERIFY
    if state.can_share:
        return StepKind.SHARED
    if state.can_prefill and not (state.ready and state.last_pass is StepKind.PREFILL):
        return StepKind.PREFILL
    return StepKind.VERIFY if state.ready else StepKind.SHARED

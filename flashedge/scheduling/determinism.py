"""Deterministic requests: the shape in which their tokens are computed, and when.

A sequence is cut into windows of T tokens, counted from its first token, prompt included. Each
window is computed by a pass of T * G rows, so the order of every sum depends on the shape alone. A
token's place in its window depends on its position only, not on where the prompt ends or on what
was rolled back.

All other requests wait during a pass. For their sake, at most one pass comes between two shared
steps.

Ref: arXiv 2601.17768 §4. Departures: ADR 20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

MAX_WAIT = 4
"""Most shared steps that a full window waits, so that others are verified in the same pass. Chosen
by hand: without the wait most passes hold one window; with 40 its tokens would come late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """The shape of all passes. Equal shapes on equal devices give equal bits."""

    window: int
    """T: tokens of a window. A multiple of the tokens of a KV block, so that windows are shared
    in whole blocks."""
    group: int = 1
    """G: windows of one pass. 1 where the kernels are not position-invariant: then a token's row
    in the pass must be its place in the window."""
    prefill_windows: int = 1
    """Windows of one prompt that a prefill pass computes, at most `group`. 1 where a window's KV
    depends on whether the windows before it are computed in the same pass."""

    @property
    def rows(self) -> int:
        return self.window * self.group

    def find_window(self, known: int) -> int:
        """First position of the window that draws the next token. known: tokens so far (>= 1)."""
        return (known - 1) // self.window * self.window

    def end_window(self, known: int, max_model_len: int) -> int:
        """The position after the window of `find_window`. The last position of the context is never
        an input."""
        return min(self.find_window(known) + self.window, max_model_len - 1)

    def end_chunk(self, computed: int, known: int) -> int:
        """The position after the next chunk of prefill, which ends before the window that draws the
        next token. computed: tokens with KV, a multiple of the window."""
        chunk = self.window * self.prefill_windows
        return min(computed // chunk * chunk + chunk, self.find_window(known))

    def count_chunk(self, sequences: int) -> int:
        """Tokens of each sequence that a pass over this many sequences computes: whole windows."""
        windows = min(self.prefill_windows, self.group // sequences)
        return self.window * max(1, windows)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PassShape:
        return cls(**found)


class StepKind(StrEnum):
    SHARED = "shared"
    """vLLM's own step: prefill and decode of all other requests, and the decode of deterministic
    ones, whose tokens are candidates until they are verified."""
    PREFILL = "prefill"
    """A pass over whole windows of prompts of deterministic requests."""
    VERIFY = "verify"
    """A pass over the windows of up to G deterministic requests, which draws their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """What a scheduler knows before a step."""

    can_prefill: bool
    """Whether a deterministic request has prompt to compute, and room in the batch."""
    ready: int
    """Windows that can be verified."""
    waited: int
    """Shared steps for which the oldest of these has waited."""
    expects_window: bool
    """Whether another window may be full within `MAX_WAIT` shared steps."""
    can_share: bool
    """Whether a shared step has anything to do."""
    has_others: bool
    """Whether a shared step would take requests that are not deterministic."""
    last: StepKind
    """The kind of the step before this one."""
    last_pass: StepKind
    """The kind of the last pass: PREFILL or VERIFY."""


def choose_step(state: BatchState, group: int) -> StepKind:
    """Choose the next step. Where both kinds of pass are due they take turns. group: G."""
    waits = state.waited < MAX_WAIT and (state.expects_window or state.can_prefill)
    is_due = state.ready >= group or (state.ready > 0 and not waits)
    if not state.has_others or state.last is StepKind.SHARED:
        if state.can_prefill and not (is_due and state.last_pass is StepKind.PREFILL):
            return StepKind.PREFILL
        if is_due:
            return StepKind.VERIFY
    if state.can_share:
        return StepKind.SHARED
    if state.can_prefill and not (state.ready and state.last_pass is StepKind.PREFILL):
        return StepKind.PREFILL
    return StepKind.VERIFY if state.ready else StepKind.SHARED

"""A deterministic request while it runs: which of its tokens are verified.

vLLM's own request holds the verified tokens and, behind them, the candidates: tokens that shared
steps drew. A pass takes the candidates back, computes their window again, and draws the tokens.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.v1.request import Request

PAD = 0
"""The token that stands where a window has no candidate. It is a guess like any other: where the
pass draws it, it was right."""


@dataclass(slots=True, eq=False, kw_only=True)
class Replay:
    """What the scheduler knows of a deterministic request."""

    request: Request
    verified: int
    """Prompt tokens and verified tokens."""
    is_current: bool = False
    """Whether the KV of the window was computed since the request got its blocks, so that shared
    steps may go on from it."""
    saved: list[int] = field(default_factory=list)
    """Candidates of a request that lost its blocks."""
    may_end: bool = False
    """Whether the last candidate would end the step. A shared step need not go on behind it."""
    waited: int = 0
    """Shared steps since its window could be verified."""

    @property
    def candidates(self) -> Sequence[int]:
        """Tokens behind the verified ones."""
        return self.saved or self.request.all_token_ids[self.verified :]

    def take_candidates(self, hash_block_size: int) -> list[int]:
        """Take the candidates out of vLLM's request."""
        taken = list(self.candidates)
        self.saved = []
        rewind(self.request, self.verified, hash_block_size)
        return taken

    def drop_candidates(self, hash_block_size: int) -> None:
        self.take_candidates(hash_block_size)
        self.may_end = False
        self.limit_computed()

    def limit_computed(self) -> None:
        """The last token has no KV: the next step computes it."""
        request = self.request
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)

    def lose_blocks(self, hash_block_size: int) -> None:
        """Its KV is gone. The candidates are kept, so that they need not be drawn again."""
        self.saved = self.take_candidates(hash_block_size) or list(self.request.spec_token_ids)
        self.is_current = False
        self.may_end = False
        self.waited = 0

    def begin_pass(self, start: int, guesses: list[int]) -> None:
        """The window is computed again from its start. The candidates were taken."""
        self.request.num_computed_tokens = start
        self.request.spec_token_ids = guesses
        self.is_current = False

    def miss_pass(self) -> None:
        """The pass had no room for it."""
        self.saved = self.saved or list(self.request.spec_token_ids)
        self.request.spec_token_ids = []

    def commit(self) -> None:
        """All tokens of vLLM's request are verified, and so is the KV up to them."""
        self.verified = self.request.num_tokens
        self.is_current = True
        self.may_end = False
        self.waited = 0


def rewind(request: Request, known: int, hash_block_size: int) -> None:
    """Forget all but the first `known` tokens of vLLM's request."""
    del request._output_token_ids[known - request.num_prompt_tokens :]
    del request._all_token_ids[known:]
    del request.block_hashes[known // hash_block_size :]


def fill_window(candidates: Sequence[int], size: int) -> list[int]:
    """The guesses of a window in which `size` tokens are not verified yet."""
    guesses = list(candidates[:size])
    return guesses + [PAD] * (size - len(guesses))

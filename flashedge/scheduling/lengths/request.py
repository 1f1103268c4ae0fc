"""What a predictor of lengths is told: a request before it runs, and its outputs afterwards."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass

from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.types import BLANK_LINE, TokenIds

PLAIN = "plain"
"""The kind of a request outside any search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRequest:
    """A search or a plain request, of which the length of one output is to be predicted."""

    pair: str
    """The pair that generates."""

    kind: str = PLAIN
    """The name of a search's strategy, or PLAIN."""

    prompt_ids: TokenIds = ()
    """The whole prompt in the generator's tokens. Empty where only the text is known."""

    text: str = ""
    """The conversation. Empty where only the tokens are known."""

    prompt_tokens: int | None = None
    """Tokens of the prompt. None where neither the tokens nor their number are known."""

    outputs: int = 1
    """Paths or choices that it asks for."""

    max_tokens: int
    """Limit of one output."""

    step_rule: str = BLANK_LINE
    """Where a step ends: one of STEP_RULES."""

    client: str = ""
    """Who asks, or the name of the program that asks. Empty where nobody says."""

    @property
    def num_prompt_tokens(self) -> int | None:
        """Tokens of the prompt, as far as they are known."""
        return len(self.prompt_ids) or self.prompt_tokens

    @property
    def prompt_key(self) -> str:
        """16 hex digits that equal prompts have in common. By the text where there is one."""
        if self.text:
            data = b"text" + self.text.encode()
        else:
            data = b"ids" + array("q", self.prompt_ids).tobytes()
        return hashlib.blake2b(data, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedOutputs:
    """A request that is over, and how long its outputs became."""

    request: LengthRequest
    lengths: OutputLengths

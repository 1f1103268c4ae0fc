"""Which prompts the engines have computed lately: what the policy `prefix` goes by.

It stands for the engine's prefix cache, which is in another process and drops what it has no room
for. Ref: SGLang's longest prefix match, a rival in arXiv 2412.20993 §5.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from flashedge.types import TokenIds

KEPT_PROMPTS = 256


class Prompts(Protocol):
    """Remembers prompts."""

    def note(self, prompt: TokenIds) -> bool:
        """The engines compute this prompt. Returns whether others may share more than before."""
        ...

    def count_shared(self, prompt: TokenIds) -> int:
        """Tokens with which this prompt and one of those begin, at most."""
        ...


class CachedPrompts:
    """Implements `Prompts`: the last `KEPT_PROMPTS` of them."""

    def __init__(self) -> None:
        self._prompts: deque[TokenIds] = deque(maxlen=KEPT_PROMPTS)

    def note(self, prompt: TokenIds) -> bool:
        is_new = prompt not in self._prompts
        if is_new:
            self._prompts.append(prompt)
        return is_new

    def count_shared(self, prompt: TokenIds) -> int:
        return max((count_shared(prompt, known) for known in self._prompts), default=0)


class NoPrompts:
    """Implements `Prompts` for policies that do not ask."""

    def note(self, prompt: TokenIds) -> bool:
        return False

    def count_shared(self, prompt: TokenIds) -> int:
        return 0


def count_shared(left: TokenIds, right: TokenIds) -> int:
    """Tokens that both begin with. Slices are compared, since prompts can have 30,000 tokens."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

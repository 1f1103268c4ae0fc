"""What part of its paths' tokens a search holds in KV memory at its peak.

The paths of a tree share what they have in common, and pruned ones are dropped. So a beam search
holds a third of what as many paths of full length would need. The part is measured on runs that
finish, for each strategy.
"""

from __future__ import annotations

FADING = 0.2
"""How much of a smaller part counts at once."""


class KvShares:
    """The parts of one pair's strategies, in (0, 1]. Strategies that have not run have 1."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def find(self, strategy: str) -> float:
        return self._shares.get(strategy, 1.0)

    def learn(self, strategy: str, share: float) -> None:
        """A run has finished. A larger part than before counts in full, since too little room
        costs more than too much."""
        before = self._shares.get(strategy, share)
        self._shares[strategy] = max(share, before + FADING * (share - before))

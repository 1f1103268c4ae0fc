"""How many tokens a second the daemon has drawn lately."""

from __future__ import annotations

from collections import deque

WINDOW_S = 20.0


class TokenRate:
    """Counts tokens over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, tokens: int) -> None:
        self._seen.append((now_s, tokens))
        self._forget(now_s)

    def measure(self, now_s: float) -> float | None:
        """Tokens a second. None where too little was seen to say."""
        self._forget(now_s)
        if len(self._seen) < 2:
            return None
        elapsed_s = now_s - self._seen[0][0]
        return sum(tokens for _, tokens in self._seen) / elapsed_s if elapsed_s > 0 else None

    def _forget(self, now_s: float) -> None:
        while self._seen and self._seen[0][0] < now_s - WINDOW_S:
            self._seen.popleft()

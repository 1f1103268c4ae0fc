"""What the nodes that generate have written so far, for Progress events and watched nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from flashedge.events import Progress
from flashedge.types import NodeId, TokenIds

TAIL_TOKENS = 32
TAILS_EVERY = 10
MAX_TAILS = 64


class Growth:
    """Counts tokens by node, and remembers the last `TAIL_TOKENS` of each."""

    def __init__(self, decode: Callable[[TokenIds], str]) -> None:
        self._decode = decode
        self._tokens: dict[NodeId, int] = {}
        self._tails: dict[NodeId, TokenIds] = {}
        self._ended: dict[NodeId, int] = {}
        self._watched: dict[NodeId, int] = {}
        self._reports = 0

    def start(self, node: NodeId) -> None:
        self._tokens[node] = 0
        self._tails[node] = ()

    def watch(self, tokens: Mapping[NodeId, int]) -> list[NodeId]:
        """Let `add` tell when these nodes have so many tokens. Returns those that have."""
        self._watched |= tokens
        return [node for node in tokens if self._is_reached(node)]

    def add(self, node: NodeId, token_ids: TokenIds) -> bool:
        """Whether the node has as many tokens now as it is watched for."""
        self._tokens[node] += len(token_ids)
        self._tails[node] = (*self._tails[node], *token_ids)[-TAIL_TOKENS:]
        return self._is_reached(node)

    def count(self, node: NodeId) -> int:
        return self._tokens.get(node, 0)

    def end(self, node: NodeId) -> None:
        self._ended[node] = self._forget(node)

    def drop(self, nodes: Iterable[NodeId]) -> int:
        """Forget nodes that were cancelled. Returns the tokens that they have written."""
        return sum(self._forget(node) + self._ended.pop(node, 0) for node in nodes)

    def clear(self) -> None:
        self._tokens.clear()
        self._tails.clear()

    def report(self) -> Progress | None:
        """All counts; in every `TAILS_EVERY`-th report also the text of up to `MAX_TAILS` nodes.
        None while nothing generates."""
        if not self._tokens:
            return None
        tails: tuple[tuple[NodeId, str], ...] = ()
        if self._reports % TAILS_EVERY == 0:
            newest = islice(self._tails.items(), MAX_TAILS)
            tails = tuple((node, self._decode(ids).strip("�")) for node, ids in newest if ids)
        self._reports += 1
        return Progress(tokens=tuple(self._tokens.items()), tails=tails)

    def _is_reached(self, node: NodeId) -> bool:
        asked = self._watched.get(node)
        if asked is None or self.count(node) < asked:
            return False
        del self._watched[node]
        return True

    def _forget(self, node: NodeId) -> int:
        self._watched.pop(node, None)
        self._tails.pop(node, None)
        return self._tokens.pop(node, 0)

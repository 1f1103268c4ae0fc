"""The KV memory of a simulated pair: half and half, or split anew at each level (and offloaded).

The decisions are those of `scheduling.kv_split`; here they are carried out: quotas and batch
limits move, and where the engines take the memory in turn, what they keep crosses the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from flashedge.engine.sim_engine import SimEngine
from flashedge.errors import ConfigError
from flashedge.scheduling.cost_curves import RooflineCurve
from flashedge.scheduling.kv_split import HostLink, KvSplit, best_split, predicted, settled
from flashedge.scheduling.kv_stages import EngineCost, Workload
from flashedge.search.base import Expand
from flashedge.search.tree import Tree
from flashedge.types import NodeId

FIRST_STEP_TOKENS = 64  # before anything is known of a run


@dataclass(slots=True)
class Turns:
    """The device: engines' steps one at a time. Where KV waits on the host, a change of engine
    moves it: `moved_s` seconds so far, `moves` times."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last: Turn | None = None
    moved_s: float = 0.0
    moves: int = 0


@dataclass(slots=True, eq=False)
class Turn:
    """An engine's gate (`SimEngine`). one_way_s: what its KV takes to leave, and to come back."""

    turns: Turns
    one_way_s: float = 0.0

    async def __aenter__(self) -> None:
        turns = self.turns
        await turns.lock.acquire()
        last, turns.last = turns.last, self
        took_s = last.one_way_s + self.one_way_s if last not in (None, self) else 0.0
        if took_s:
            turns.moved_s += took_s
            turns.moves += 1
            await asyncio.sleep(took_s)

    async def __aexit__(self, *error: object) -> None:
        self.turns.lock.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One engine and its gate."""

    engine: SimEngine
    turn: Turn

    @property
    def cost(self) -> EngineCost:
        config = self.engine.config
        size, token = config.block_tokens, config.shape.kv_bytes_per_token
        return EngineCost(
            curve=RooflineCurve(device=config.device, shape=config.shape),
            kv_bytes_per_token=token,
            block_tokens=size,
            max_batch=config.max_num_seqs,
            least_bytes=-(-config.max_model_len // size) * size * token,
        )


class VirtualMemory:
    """Splits `kv_bytes` between both engines. link None: nothing is offloaded."""

    def __init__(
        self, generator: Side, verifier: Side, kv_bytes: int, link: HostLink | None
    ) -> None:
        self._sides = generator, verifier
        self._costs = generator.cost, verifier.cost
        self._kv_bytes = kv_bytes
        self._link = link
        self._tasks: set[asyncio.Task[None]] = set()
        self.split: KvSplit | None = None
        self.moves = 0

    async def halves(self) -> None:
        """The stock split, for good."""
        for side in self._sides:
            await side.engine.budget(self._kv_bytes // 2)

    def level(self, tree: Tree, prompt_tokens: int, expansions: Iterable[Expand]) -> None:
        """A level begins: decide anew, and move before its first step where that pays."""
        load = workload(tree, prompt_tokens, tuple(expansions))
        split = self._decided(load)
        if split is None:
            return
        if split != self.split:
            self.moves += 1
            self.split = split
        task = asyncio.get_running_loop().create_task(self._carry_out(split, load))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _decided(self, load: Workload) -> KvSplit | None:
        """None where the memory does not hold one path: what stands, stands."""
        costs = {"generator": self._costs[0], "verifier": self._costs[1], "link": self._link}
        try:
            new = best_split(load, kv_bytes=self._kv_bytes, **costs)  # type: ignore[arg-type]
        except ConfigError:
            return None
        last_s = predicted(self.split, load, **costs) if self.split else None  # type: ignore[arg-type]
        return settled(self.split, new, last_s=last_s)

    async def _carry_out(self, split: KvSplit, load: Workload) -> None:
        shares = (
            (split.generator_bytes, split.decode_batch, split.generator_saved),
            (split.verifier_bytes, split.prefill_batch, split.verifier_saved),
        )
        for side, (kv_bytes, batch, saved) in zip(self._sides, shares, strict=True):
            engine = side.engine
            await engine.budget(kv_bytes, batch)
            side.turn.one_way_s = 0.0
            if split.offload and self._link is not None:
                live = load.live_tokens * engine.config.shape.kv_bytes_per_token
                moved = min(live, engine.kept_bytes) if saved else 0
                side.turn.one_way_s = self._link.switch_s / 2 + moved / self._link.bytes_per_s
                if not saved:
                    engine.forget()


def workload(tree: Tree, prompt_tokens: int, expansions: tuple[Expand, ...]) -> Workload:
    """The level that these expansions begin, as the split sees it: its steps are foreseen to be as
    long as those of the tree so far."""
    paths = sum(len(e.children) for e in expansions)
    contexts = [prompt_tokens + tree[e.parent].path_tokens for e in expansions]
    total = sum(c * len(e.children) for c, e in zip(contexts, expansions, strict=True))
    context = total // paths
    live = prompt_tokens + sum(_own_tokens(tree, n) for n in _ancestors(tree, expansions))
    made = [len(n.segment.token_ids) for n in tree.nodes.values() if n.segment is not None]
    step = round(sum(made) / len(made)) if made else FIRST_STEP_TOKENS
    most = min(e.granularity.max_tokens for e in expansions)
    return Workload(
        paths=paths,
        context_tokens=context,
        live_tokens=max(context, min(live, paths * context)),
        step_tokens=max(1, min(step, most)),
    )


def _ancestors(tree: Tree, expansions: tuple[Expand, ...]) -> set[NodeId]:
    return {node.id for e in expansions for node in tree.path(e.parent)}


def _own_tokens(tree: Tree, node: NodeId) -> int:
    segment = tree[node].segment
    return 0 if segment is None else len(segment.token_ids)

"""Rows of the run list and the daemon's status, parsed from the client's JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashedge.client.protocol import OPEN_STATUSES
from flashedge.client.words import describe_prediction
from flashedge.literal import show_in_line
from flashedge.types import USUAL_POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of the listing. Its texts are in one line each, with control characters visible."""

    id: str
    status: str
    strategy: str
    n: int
    problem: str
    created_at: float = 0.0
    """Unix seconds. 0 where that is not known."""
    answer: str | None = None
    tokens: int | None = None
    total_s: float | None = None
    position: int | None = None
    starts_in_s: float | None = None
    """Seconds until it is expected to start. None where that is not known."""
    prediction: str = ""
    """The predicted length of its paths, in words. Empty where that is not known."""

    @property
    def live(self) -> bool:
        return self.status in OPEN_STATUSES

    @property
    def search(self) -> str:
        return f"{self.strategy}-{self.n}"


def parse_run(data: Mapping[str, Any]) -> RunRow:
    answer, half, tail = (data.get(key) for key in ("answer", "median_tokens", "tail_tokens"))
    return RunRow(
        id=str(data["id"]),
        status=show_in_line(str(data["status"])),
        strategy=show_in_line(str(data.get("strategy"))),
        n=int(data.get("n") or 1),
        problem=show_in_line(str(data.get("problem") or "")),
        created_at=float(data.get("created_at") or 0.0),
        answer=None if answer is None else show_in_line(str(answer)),
        tokens=data.get("tree_tokens"),
        total_s=data.get("total_s"),
        position=data.get("position"),
        starts_in_s=data.get("starts_in_s"),
        prediction="" if half is None or tail is None else describe_prediction(half, tail),
    )


def list_strategies(models: Mapping[str, Any]) -> tuple[str, ...]:
    """List the strategies of the first pair, from the ids `pair:strategy` of the models."""
    pair, *names = [str(model["id"]) for model in models["data"]] or [""]
    own = f"{pair}:"
    return tuple(show_in_line(n.removeprefix(own)) for n in names if n.startswith(own))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    state: str = "unknown"
    restarts: int = 0
    kv_used_bytes: int = 0
    kv_quota_bytes: int = 0
    """On each card of the engine."""
    owns_cards: bool = False
    """Whether the other engine runs on other cards, so that no memory is divided."""
    cards: tuple[str, ...] = ()
    """The names of its cards in CUDA_VISIBLE_DEVICES. Empty on a CPU."""
    cache_hits: float | None = None
    """Share of its prompts' tokens that the prefix cache had, in [0, 1]. None before any."""
    accepted_drafts: float | None = None
    """Share of its drafted tokens that were drawn, in [0, 1]. None before any."""

    @property
    def kv_share(self) -> float:
        """The part of its KV memory that is in use, in [0, 1]."""
        return self.kv_used_bytes / self.kv_quota_bytes if self.kv_quota_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long the last requests of one kind took, as (median, 90th percentile)."""

    kind: str
    """Such as chat, or run for searches."""
    requests: int
    first_token_s: tuple[float, float]
    token_s: tuple[float, float] | None
    """Seconds for each further token. None if no request had one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    state: str
    pair: str
    """The loaded pair that was used last, else the default."""
    running: int
    queued: int
    kept: int | None
    """How many runs the daemon's store has. None if it does not say."""
    detail: str
    """What is wrong with the engines, and what happens next. Empty if nothing is wrong."""
    policy: str
    boosts: str
    """`5/8 rollouts`: boosted runs may have 5 of 8 rollouts in flight. Empty if they have none."""
    generator: EngineStatus
    verifier: EngineStatus
    latency: tuple[Latency, ...] = ()
    """The most frequent kind of request first."""
    others: tuple[str, ...] = ()
    """The other programs that hold memory of the cards, in words."""

    @property
    def is_well(self) -> bool:
        return self.state in ("ready", "unloaded")

    @property
    def generator_share(self) -> float | None:
        """The generator's part of the engines' KV memory, in [0, 1]. None if they share none."""
        if self.generator.owns_cards:
            return None
        both = self.generator.kv_quota_bytes + self.verifier.kv_quota_bytes
        return self.generator.kv_quota_bytes / both if both else None

    @property
    def cards(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.generator.cards, *self.verifier.cards)))


def parse_status(status: Mapping[str, Any]) -> DaemonStatus:
    engines = status.get("engines") or {}
    runs = status.get("runs") or {}
    return DaemonStatus(
        state=show_in_line(str(status.get("state"))),
        pair=show_in_line(str((status.get("loaded") or [status.get("pair")])[-1])),
        running=int(runs.get("running") or 0),
        queued=int(runs.get("queued") or 0),
        kept=status.get("kept_runs"),
        detail=show_in_line(str(status.get("detail") or "")),
        policy=show_in_line(str((status.get("scheduling") or {}).get("policy") or USUAL_POLICY)),
        boosts=_describe_boosts((status.get("scheduling") or {}).get("boosts") or ()),
        generator=_parse_engine(engines.get("generator") or {}),
        verifier=_parse_engine(engines.get("verifier") or {}),
        latency=_parse_latency(status.get("latency") or {}),
        others=_describe_others(status.get("pairs") or {}),
    )


def _parse_latency(kinds: Mapping[str, Any]) -> tuple[Latency, ...]:
    found = [
        Latency(
            kind=show_in_line(str(kind)),
            requests=int(one.get("requests") or 0),
            first_token_s=(first["p50"], first["p90"]),
            token_s=(each["p50"], each["p90"]) if (each := one.get("token_s")) else None,
        )
        for kind, one in kinds.items()
        if (first := one.get("first_token_s"))
    ]
    return tuple(sorted(found, key=lambda one: -one.requests))


def _describe_others(pairs: Mapping[str, Any]) -> tuple[str, ...]:
    """`ollama 3.2 GiB` for each program on each card, once even if several pairs list it."""
    found = {}
    for user in (user for pair in pairs.values() for user in pair.get("card_users") or ()):
        name, held = user.get("name") or f"process {user.get('pid')}", user.get("memory_bytes")
        size = "" if held is None else f" {held / (1 << 30):.1f} GiB"
        found[user.get("card"), user.get("pid")] = f"{show_in_line(str(name))}{size}"
    return tuple(found.values())


def _describe_boosts(boosts: Sequence[Mapping[str, Any]]) -> str:
    granted = sum(sum((one.get("runs") or {}).values()) for one in boosts)
    budget = sum(int(one.get("budget") or 0) for one in boosts)
    return f"{granted}/{budget} rollouts" if granted else ""


def _parse_engine(engine: Mapping[str, Any]) -> EngineStatus:
    view = engine.get("view") or {}
    block_bytes = int(view.get("block_bytes") or 0)
    drafts = view.get("token_drafts") or {}
    drafted = drafts.get("drafted_tokens")
    return EngineStatus(
        state=show_in_line(str(engine.get("state") or "unknown")),
        restarts=int(engine.get("restarts") or 0),
        kv_used_bytes=int(view.get("blocks_used") or 0) * block_bytes,
        kv_quota_bytes=int(view.get("quota_blocks") or 0) * block_bytes,
        owns_cards=engine.get("kv_memory") == "own",
        cards=tuple(
            part.removeprefix("GPU ")
            for part in str(engine.get("cards") or "").split(" + ")
            if part.startswith("GPU ")
        ),
        cache_hits=view.get("cache_hits"),
        accepted_drafts=drafts["accepted_tokens"] / drafted if drafted else None,
    )

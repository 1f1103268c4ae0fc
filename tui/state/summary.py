"""Lines of the run list and looks at the daemon, read from the client's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIVE = frozenset({"queued", "running"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A line of the listing. position: runs that wait before it (None: it does not wait)."""

    id: str
    status: str
    strategy: str
    n: int
    problem: str
    answer: str | None = None
    tokens: int | None = None
    total_s: float | None = None
    position: int | None = None

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def search(self) -> str:
        return f"{self.strategy}-{self.n}"


def summary_of(data: Mapping[str, Any], position: int | None = None) -> RunSummary:
    return RunSummary(
        id=str(data["id"]),
        status=str(data["status"]),
        strategy=str(data.get("strategy")),
        n=int(data.get("n") or 1),
        problem=" ".join(str(data.get("problem") or "").split()),
        answer=data.get("answer"),
        tokens=data.get("tree_tokens"),
        total_s=data.get("total_s"),
        position=position,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLook:
    """One engine between two steps: requests, and KV memory as it is used and allowed."""

    state: str = "unknown"
    restarts: int = 0
    running: int = 0
    waiting: int = 0
    kv_used_bytes: int = 0
    kv_quota_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLook:
    """What `/v1/status` said last."""

    state: str
    pair: str
    version: str
    running: int
    queued: int
    generator: EngineLook
    verifier: EngineLook

    @property
    def generator_share(self) -> float | None:
        """The generator's part of the KV memory of both, in [0, 1]."""
        both = self.generator.kv_quota_bytes + self.verifier.kv_quota_bytes
        return self.generator.kv_quota_bytes / both if both else None


def look_of(status: Mapping[str, Any]) -> DaemonLook:
    engines = status.get("engines") or {}
    runs = status.get("runs") or {}
    return DaemonLook(
        state=str(status.get("state")),
        pair=str(status.get("pair")),
        version=str(status.get("version")),
        running=int(runs.get("running") or 0),
        queued=int(runs.get("queued") or 0),
        generator=_engine(engines.get("generator") or {}),
        verifier=_engine(engines.get("verifier") or {}),
    )


def _engine(engine: Mapping[str, Any]) -> EngineLook:
    view = engine.get("view") or {}
    block_bytes = int(view.get("block_bytes") or 0)
    return EngineLook(
        state=str(engine.get("state") or "unknown"),
        restarts=int(engine.get("restarts") or 0),
        running=int(view.get("running") or 0),
        waiting=int(view.get("waiting") or 0),
        kv_used_bytes=int(view.get("blocks_used") or 0) * block_bytes,
        kv_quota_bytes=int(view.get("quota_blocks") or 0) * block_bytes,
    )

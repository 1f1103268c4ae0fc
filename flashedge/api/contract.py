"""The part of the runtime that the HTTP layer uses. `runtime.service.Service` implements it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from flashedge.engine.base import Health
from flashedge.engine.http_requests import AsgiApp
from flashedge.events import Event
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.programs.asker import NOBODY, Asker
from flashedge.runtime.programs.outlook import Outlook, Scheduling
from flashedge.runtime.records.archive import RunSummary
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.request import Request
from flashedge.runtime.served_pair import PairState
from flashedge.runtime.solution_scoring import ScoreAsk, SolutionScores
from flashedge.types import BLANK_LINE, MIN_STEP_TOKENS, STEP_ENTROPY, STEPS, Sampling, TokenIds


class HealthPort(Protocol):
    """The health of the engines."""

    @property
    def state(self) -> str:
        """starting, ready, degraded, failed or unloaded."""
        ...

    @property
    def detail(self) -> str | None: ...
    @property
    def generator(self) -> Health: ...
    @property
    def verifier(self) -> Health: ...
    @property
    def self_test(self) -> Mapping[str, Any] | None: ...


class HandlePort(Protocol):
    """One run, live or over. See `runtime.run.Run`; `status` is a value of RunStatus."""

    @property
    def id(self) -> str: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def status(self) -> str: ...
    @property
    def position(self) -> int | None: ...
    @property
    def outlook(self) -> Outlook:
        """Its place in the queue, when it is expected to start, and how long its paths will be."""
        ...

    def events(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]: ...
    async def result(self) -> dict[str, Any]: ...
    def cancel(self, reason: str) -> None: ...
    def object(self) -> dict[str, Any]: ...


class PairPort(Protocol):
    """A loaded pair."""

    @property
    def protocols(self) -> AsgiApp:
        """vLLM's protocol handlers over the generator. Raises RequestError where there are none."""
        ...

    async def wait_tested(self) -> None:
        """Wait for the end of the engines' self-test, which deterministic requests need."""
        ...


class ServicePort(Protocol):
    """The service. Its methods raise FlashEdgeError and its subclasses only."""

    @property
    def pair(self) -> str:
        """The pair of requests that name none."""
        ...

    @property
    def loaded(self) -> Sequence[str]:
        """The loaded pairs, the most recently used one last."""
        ...

    @property
    def metrics(self) -> Metrics: ...
    @property
    def kept_runs(self) -> int:
        """Runs in the store."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of queued and of running runs, of all pairs."""
        ...

    @property
    def scheduling(self) -> Scheduling:
        """The policy that orders programs, and how each of them stands: its place, what is
        predicted of its length, and when it is expected to start."""
        ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def health(self) -> HealthPort: ...
    def pairs(self) -> Mapping[str, PairState]:
        """The pairs that are loaded or being loaded, the most recently used one last. Without any,
        the default pair."""
        ...

    def check_queue(self, pair: str) -> None:
        """Raises QueueFull when no further run of this pair is taken."""
        ...

    def use_pair(self, name: str) -> AbstractAsyncContextManager[PairPort]:
        """A pair, which is loaded first where it is not, and stays loaded until the block ends."""
        ...

    def load(self) -> None:
        """Begin to load the pair of requests that name none."""
        ...

    def keep_alive(self, seconds: float | None) -> None:
        """Note how long the request that now begins wants its pair to stay loaded after it."""
        ...

    async def encode_prompt(self, request: Request) -> TokenIds: ...
    def submit(
        self,
        request: Request,
        prompt_ids: TokenIds | None = None,
        *,
        run_id: str | None = None,
        continues: str | None = None,
        asker: Asker = NOBODY,
    ) -> HandlePort: ...
    async def score(self, ask: ScoreAsk, asker: Asker = NOBODY) -> Sequence[SolutionScores]:
        """Score the solutions, in their order, on their pair, which the caller uses."""
        ...

    def run(self, run_id: str) -> HandlePort: ...
    def runs(
        self, *, limit: int = 50, before: str | None = None, status: str | None = None
    ) -> Sequence[RunSummary]: ...
    async def search_runs(
        self, text: str, *, limit: int = 50, before: str | None = None, status: str | None = None
    ) -> Sequence[RunSummary]:
        """Those whose messages, answer or chosen path hold a text, in any case."""
        ...

    def delete(self, run_id: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values of a pair for fields that a request leaves out."""

    pair: str = "bundled"
    sampling: Sampling
    max_model_len: int
    """Most tokens of prompt and path together."""
    strategies: tuple[str, ...] = ("beam",)
    """Those that the verifier can serve."""
    strategy: str = "beam"
    max_step_tokens: int
    max_path_tokens: int
    step_rule: str = BLANK_LINE
    step_entropy: float = STEP_ENTROPY
    min_step_tokens: int = MIN_STEP_TOKENS
    judge: str = STEPS
    has_budgets: bool = False
    """Whether the engine limits the thinking of its model."""
    deterministic: bool = False
    scores_pairs: bool = False
    """Whether vLLM's own handler can score pairs of texts by the verifier."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The options of each strategy."""

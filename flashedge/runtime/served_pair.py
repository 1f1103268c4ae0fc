"""The pair that the daemon serves: its engines, started and tested, and their KV memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from flashedge.answers.workers.mathematics import Grader
from flashedge.config import Config
from flashedge.engine.base import EngineView, Generator, Health, Verifier
from flashedge.errors import ContextOverflow, EngineDead, FlashEdgeError, NotFound
from flashedge.events import Event
from flashedge.models.fingerprint import pair_fingerprint
from flashedge.models.registry import Pair, find_pair
from flashedge.runtime.drive.engines import Engines, TextGroups
from flashedge.runtime.drive.flat_batch import tell_flat_batch
from flashedge.runtime.drive.scoring import scores_early
from flashedge.runtime.kv.build import build_manager
from flashedge.runtime.kv.curves import curves_for
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.kv.run_memory import FixedMemory, RunMemory
from flashedge.runtime.request.spec import RunSpec
from flashedge.scheduling.prefix_order import arrival_order, sweep_order
from flashedge.types import Message, TokenIds

log = logging.getLogger(__name__)


class EnginePair(Protocol):
    """The two engines of a pair and their naive twins. See `engine.vllm.pair`."""

    @property
    def generator(self) -> Generator: ...
    @property
    def verifier(self) -> Verifier: ...
    @property
    def stock_generator(self) -> Generator: ...
    @property
    def stock_verifier(self) -> Verifier: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def health(self) -> tuple[Health, Health]: ...
    async def self_test(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """state: starting, ready, degraded (an engine is being restarted) or failed."""

    state: str
    detail: str | None
    generator: Health
    verifier: Health
    self_test: Mapping[str, Any] | None


class ServedPair:
    """The one pair of this daemon."""

    def __init__(self, pair: Pair, engines: EnginePair, config: Config) -> None:
        self.name = pair.name
        self._pair = pair
        self._engines = engines
        self._config = config
        self._memory: KvManager | None = None
        self._self_test: dict[str, Any] | None = None
        self._failure: str | None = None
        self._fingerprint: str | None = None

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the engines and test them. Raises EngineError; `health` then says failed."""
        try:
            await self._engines.start()
            self_test = await self._engines.self_test()
            await self._tune()
            self._self_test = self_test
        except Exception as error:
            self._failure = (
                error.line
                if isinstance(error, FlashEdgeError)
                else f"{type(error).__name__}: {error}"
            )
            raise

    async def _tune(self) -> None:
        """To what is known of this device. Where nothing is, the memory stays as it was planned."""
        generator, verifier = self._engines.generator, self._engines.verifier
        try:
            curves = await asyncio.to_thread(curves_for, self._pair, self._config)
        except FlashEdgeError as error:
            log.warning("nothing is known of this device's speed: %s", error.line)
            return
        self._memory = await build_manager(self._pair, generator, verifier, curves, self._config)
        tell_flat_batch(generator.speculator, curves.generator, self._config)

    async def stop(self) -> None:
        if self._memory is not None:
            await self._memory.stop()
        await self._engines.stop()

    def health(self) -> ServiceHealth:
        generator, verifier = self._engines.health()
        states = {generator.state, verifier.state}
        if self._failure or "failed" in states:
            state = "failed"
        elif "dead" in states:
            state = "degraded"
        elif states == {"ready"} and self._self_test is not None:
            state = "ready"
        else:
            state = "starting"
        return ServiceHealth(
            state=state,
            detail=self._failure or generator.detail or verifier.detail,
            generator=generator,
            verifier=verifier,
            self_test=self._self_test,
        )

    async def views(self) -> dict[str, EngineView]:
        """A look at both engines. Raises EngineDead."""
        generator, verifier = self._engines.generator, self._engines.verifier
        return {"generator": await generator.view(), "verifier": await verifier.view()}

    # ------------------------------------------------------------ for runs and chats

    def check(self, asked: str) -> None:
        """Raises NotFound for another pair than this one, EngineDead while it can't serve."""
        if asked != self.name:
            find_pair(asked, self._config)  # raises NotFound for one that no models.toml has
            raise NotFound(
                f"this daemon serves the pair {self.name!r}, not {asked!r}",
                hint=f"`flashedge down`, then `flashedge up --pair {asked}`",
                param="model",
            )
        health = self.health()
        if health.state == "failed":
            raise EngineDead(f"the engines are down: {health.detail}", hint="see `flashedge logs`")
        if health.state == "starting":
            raise EngineDead("the engines are still loading", hint="wait for /health to say 200")

    def prompt_ids(self, messages: tuple[Message, ...]) -> TokenIds:
        """Of the conversation, behind the pair's system prompt. Raises ContextOverflow."""
        if self._pair.system_prompt and messages[0].role != "system":
            messages = (Message(role="system", content=self._pair.system_prompt), *messages)
        ids = self._engines.generator.codec.encode_chat(messages)
        if len(ids) >= self.longest:
            raise ContextOverflow(
                f"the problem has {len(ids)} tokens; the generator's context holds {self.longest}",
                hint="shorten it",
                param="messages",
            )
        return ids

    @property
    def longest(self) -> int:
        """Tokens of prompt and path together."""
        return self._engines.generator.max_model_len

    def fingerprint(self) -> str:
        """Of the models that the engines loaded: taken once."""
        if self._fingerprint is None:
            self._fingerprint = pair_fingerprint(self._pair, self._config)
        return self._fingerprint

    def chat_generator(self) -> Generator:
        """For requests that belong to no run."""
        generator = self._engines.generator
        return generator if self._memory is None else self._memory.guest(generator)

    def engines_for(self, spec: RunSpec, grader: Grader, texts: TextGroups) -> Engines:
        """What a run works with: every optimization that is on, or none for a baseline."""
        pair, stock, memory, config = self._engines, spec.baseline, self._memory, self._config
        generator = pair.stock_generator if stock else pair.generator
        verifier = pair.stock_verifier if stock else pair.verifier
        ordered = config.scheduling_prefix_order and not stock
        return Engines(
            generator=generator if memory is None else memory.generator(generator),
            verifier=verifier if memory is None else memory.verifier(verifier),
            grader=grader,
            texts=texts,
            order=sweep_order if ordered else arrival_order,
            speculation=config.scheduling_speculation and not stock,
            lookahead=config.scheduling_lookahead and not stock,
            early_scores=scores_early(config) and not stock,
            score_once=config.scheduling_score_once and not stock,
        )

    def memory_for(
        self, spec: RunSpec, emit: Callable[[Event], None]
    ) -> AbstractContextManager[RunMemory | FixedMemory]:
        """A run's part in the KV memory, for as long as it goes on."""
        if self._memory is None:
            return nullcontext(FixedMemory())
        return self._memory.join(emit, baseline=spec.baseline)

"""A loaded pair: its engines, their self-test and their KV memory."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

from starlette.types import ASGIApp

from flashedge.answers.grouping import TextGroups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import Config
from flashedge.engine.base import EngineView, Health, ScoreRequest, StepScores
from flashedge.engine.http_requests import PlainRequests
from flashedge.engine.memory_plan import find_max_sequences
from flashedge.engine.platform import engines_have_own_processors, runs_on_cpu
from flashedge.engine.self_test_turns import UNTESTED, Turns
from flashedge.errors import ContextOverflow, EngineDead, FlashEdgeError, RequestError
from flashedge.models.folders import fingerprint_pair
from flashedge.models.specs import VERIFIER_FAMILIES, Pair
from flashedge.optimizations import Optimizations
from flashedge.profiler import ProfileError
from flashedge.profiler.card_watch import CardUser, CardWatch, find_own_pids, read_card_users
from flashedge.runtime.drive.engines import Engines, TwinEngines, build_engines
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.kv.build import build_manager
from flashedge.runtime.kv.curves import load_curves
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.programs.scheduler import measure_capacity
from flashedge.runtime.request.validation import Request
from flashedge.runtime.rollouts.boosting import build_rollout_cost
from flashedge.runtime.thinking import Thinking
from flashedge.scheduling.programs.admission import Capacity
from flashedge.scheduling.rollouts.limiter import RolloutCost
from flashedge.search.step_rules import MARKER_WORDS, split_steps
from flashedge.types import MARKERS, STEPS, UNUSED, Judges, Message, TokenIds

log = logging.getLogger(__name__)


class EnginePair(TwinEngines, Protocol):
    """The engines of a pair as the daemon starts and stops them. See `engine.vllm.pair`."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def health(self) -> tuple[Health, Health]: ...
    async def self_test(self, turns: Turns) -> dict[str, Any]: ...
    async def serve_protocols(self, plain: PlainRequests) -> ASGIApp:
        """Build the app of vLLM's HTTP routes, whose requests `plain` counts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """The health of the daemon and of both engines."""

    state: str
    """starting, ready, degraded (an engine is being restarted), failed, or unloaded (the next
    request loads a pair)."""
    detail: str | None
    """What is wrong now and what is being done about it, else what the engines do while they start.
    None if neither."""
    generator: Health
    verifier: Health
    self_test: Mapping[str, Any] | None
    """What the self-test found, None before it ends. See `engine.vllm.batch_invariance`."""
    card_users: tuple[CardUser, ...] = ()
    """Other programs that hold memory of this machine's cards, the largest first."""


SELF_TESTS = 3
"""Most attempts at the self-test, if an engine dies in each: the test may be the cause."""
ReadViews = Callable[[], Awaitable[Mapping[str, EngineView]]]
"""Returns the load of the "generator" and of the "verifier". Raises EngineDead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairState:
    """A pair as the metrics see it. `queued` and `running` count its runs."""

    health: ServiceHealth
    queued: int
    running: int
    read_views: ReadViews


def _describe_absent(state: str, detail: str) -> ServiceHealth:
    health = Health(state=state)
    return ServiceHealth(
        state=state, detail=detail, generator=health, verifier=health, self_test=None
    )


UNLOADED = _describe_absent("unloaded", "the next request loads a pair")
LOADING = _describe_absent("starting", "reading the checkpoints")

WATCH_S = 5.0
"""Seconds between two looks at the cards. Chosen by hand: health that is ten times older misleads,
and each look calls NVML for every process."""


class DeviceWatch:
    """Looks at the cards every few seconds, so that health says whether one failed, and who else
    holds their memory. Does nothing on a CPU."""

    def __init__(self) -> None:
        self.faults: tuple[str, ...] = ()
        self.users: tuple[CardUser, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if not runs_on_cpu():
            self._task = asyncio.create_task(self._run(), name="device-watch")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        """Watch until cancelled. NVML is called in threads, since a failing card may block it."""
        try:
            watch = await asyncio.to_thread(CardWatch)
        except ProfileError as error:
            log.warning("the card is not watched: %s", error)
            return
        try:
            while True:
                found = await asyncio.to_thread(watch.poll)
                for fault in found:
                    if fault not in self.faults:
                        log.error("%s", fault)
                self.faults = found
                self.users = await asyncio.to_thread(
                    lambda: read_card_users(find_own_pids(os.getpid()))
                )
                await asyncio.sleep(WATCH_S)
        finally:
            watch.close()


class ServedPair:
    """A pair on its engines, for runs and for requests outside any run."""

    def __init__(self, pair: Pair, engines: EnginePair, config: Config) -> None:
        self.name = pair.name
        self._pair = pair
        self._engines = engines
        self._config = config
        self._kv_manager: KvManager | None = None
        self.capacity: Capacity | None = None
        """None where the speed of the engines is not known."""
        self.rollout_cost: RolloutCost | None = None
        """None where the speed of the engines was not measured."""
        self._device = DeviceWatch()
        self._self_test: dict[str, Any] | None = None
        self._testing: asyncio.Task[None] | None = None
        self._waiting_for_test = 0
        self._failure: str | None = None
        self.fingerprint = cache(partial(fingerprint_pair, pair, config))
        """The digest of the pair's files, computed once."""
        self._plain: PlainRequests | None = None
        self._protocols: ASGIApp | None = None

    async def start(self, plain: PlainRequests) -> None:
        """Start the engines and their self-test, which goes on while they serve. Raises
        EngineError or CheckpointError; `health` reports failed then. plain: counts the requests
        outside any run."""
        self._device.start()
        try:
            await self._engines.start()
            await self._tune()
            if self._kv_manager is not None:
                plain = plain.with_watch(self._kv_manager.watch_plain_request)
            self._plain = plain
            self._protocols = await self._engines.serve_protocols(plain)
            self._testing = asyncio.create_task(self._run_self_test(), name="self-test")
        except Exception as error:
            name = type(error).__name__
            self._failure = error.line if isinstance(error, FlashEdgeError) else f"{name}: {error}"
            raise

    async def _run_self_test(self) -> None:
        turns = Turns(self._is_free)
        if self._kv_manager is not None:
            turns.hold = self._kv_manager.count_plain_request
        failure = ""
        for _ in range(SELF_TESTS):
            try:
                self._self_test = await self._engines.self_test(turns)
                break
            except EngineDead as error:  # it is being restarted; the test may be why
                failure = str(error)
            except Exception as error:  # the pair serves without it
                log.exception("the self-test failed")
                failure = f"{type(error).__name__}: {error}"
                break
        if self._self_test is None:
            self._self_test = {**UNTESTED, "failure": failure}
        if why := self._self_test.get("failure"):
            log.warning("the self-test did not finish (%s): no request can be deterministic", why)

    async def _is_free(self) -> bool:
        """Whether the self-test may have a turn: both engines answer, and they are idle or somebody
        waits for the test."""
        try:
            views = await self.views()
        except EngineDead:
            return False
        in_use = any(view.running or view.waiting for view in views.values())
        return self._waiting_for_test > 0 or not in_use

    async def wait_tested(self) -> None:
        """Wait until the self-test has ended. Meanwhile it takes turns while others compute."""
        if self._testing is None:
            return
        self._waiting_for_test += 1
        try:
            await asyncio.wait({self._testing})
        finally:
            self._waiting_for_test -= 1

    async def _tune(self) -> None:
        """Fit KV memory, speculation and admission to the speed of this device, if it is known."""
        generator, verifier = self._engines.generator, self._engines.verifier
        pair, config = self._pair, self._config
        try:
            curves = await asyncio.to_thread(load_curves, pair, config)
        except FlashEdgeError as error:
            log.warning("KV memory stays as planned, since no speed is known: %s", error.line)
            return
        self._kv_manager = await build_manager(pair, generator, verifier, curves, config)
        self.capacity = await measure_capacity(
            generator,
            verifier,
            curves.generator,
            max_running=config.max_running,
            max_sequences=self.max_sequences,
            is_shared=self._kv_manager is not None,
        )
        threads = config.threads_per_engine
        self.rollout_cost = build_rollout_cost(curves, generator, verifier, threads)

    async def stop(self) -> None:
        if self._testing is not None:
            self._testing.cancel()
            await asyncio.wait({self._testing})
        if self._kv_manager is not None:
            await self._kv_manager.stop()
        await self._engines.stop()
        await self._device.stop()

    def health(self) -> ServiceHealth:
        generator, verifier = self._engines.health()
        states = {generator.state, verifier.state} - {UNUSED}
        wrong = {"generator": generator.explain(), "verifier": verifier.explain()}
        detail = self._failure or _join(wrong, *self._device.faults)
        if self._failure or "failed" in states:
            state = "failed"
        elif "dead" in states:
            state = "degraded"
        elif states == {"ready"} and self._protocols is not None:
            state = "ready"
        else:
            state = "starting"
            stages = {"generator": generator.stage, "verifier": verifier.stage}
            doing = "preparing to serve" if states == {"ready"} else _join(stages)
            detail = detail or doing
        return ServiceHealth(
            state=state,
            detail=detail,
            generator=generator,
            verifier=verifier,
            self_test=self._self_test,
            card_users=self._device.users,
        )

    async def views(self) -> dict[str, EngineView]:
        generator, verifier = self._engines.generator, self._engines.verifier
        return {"generator": await generator.view(), "verifier": await verifier.view()}

    @property
    def max_sequences(self) -> int:
        """Most sequences in one step of an engine."""
        return find_max_sequences(self._config)

    async def rank_programs(self, keys: Sequence[str]) -> None:
        generator, verifier = self._engines.generator, self._engines.verifier
        await asyncio.gather(generator.rank_programs(keys), verifier.rank_programs(keys))

    def check_serves(self) -> None:
        """Raises EngineDead while the pair is loading, and if its engines failed to start."""
        health = self.health()
        if health.state == "failed":
            raise EngineDead(f"the engines are down: {health.detail}", hint="see `flashedge logs`")
        if health.state == "starting":
            raise EngineDead("the engines are still loading", hint="wait for /health to say 200")

    def encode_prompt(self, request: Request) -> TokenIds:
        """Encode the conversation, with the pair's system prompt before it unless it has one. A
        megabyte takes a second. Raises RequestError, and ContextOverflow: without encoding if the
        text has too many characters."""
        codec, most = self._engines.generator.codec, self.max_model_len
        messages = request.problem.messages
        characters = sum(len(message.content) for message in messages)
        if characters > (longest := most * codec.longest_token):
            limit = f"{most} tokens, which are {longest} characters at most"
            raise _build_overflow(f"{characters} characters", limit)
        if self._pair.system_prompt and messages[0].role != "system":
            messages = (Message(role="system", content=self._pair.system_prompt), *messages)
        ids = codec.encode_chat(messages, request.chat_template_kwargs)
        self.count_room(ids)
        return ids

    def count_room(self, prompt_ids: TokenIds) -> int:
        """Count the tokens that fit into the generator's context after a prompt. Raises
        ContextOverflow if none does."""
        most = self.max_model_len
        if len(prompt_ids) >= most:
            raise _build_overflow(f"{len(prompt_ids)} tokens", str(most))
        return most - len(prompt_ids)

    def check_step_rule(self, name: str) -> None:
        """Raises RequestError for a rule that the generator does not know, and for marker words
        where the vocabulary has none of them."""
        rules = self._engines.generator.codec.rules
        if name not in rules:
            raise RequestError(
                f"this generator can't end steps by the rule {name!r}",
                hint=f"choose one of {', '.join(rules)}",
                param="step_rule",
            )
        if name == MARKERS and not rules[MARKERS].holds:
            raise RequestError(
                f"none of the marker words ({', '.join(MARKER_WORDS)}) is a token of the generator",
                hint="choose the step rule blank_line or tokens",
                param="step_rule",
            )

    @property
    def max_model_len(self) -> int:
        return self._engines.generator.max_model_len

    @property
    def judges(self) -> Judges:
        return self._pair.verifier.judges

    @property
    def scores_probability(self) -> bool:
        """Whether the verifier's scores are probabilities, and not only ranks."""
        return VERIFIER_FAMILIES[self._pair.verifier.family].scores_probability

    def list_judged(self, text: str, steps: tuple[str, ...] = ()) -> tuple[str, ...]:
        """List what the verifier judges one by one: the steps into which a search of this pair
        would split the text, or the whole answer. steps: those of a solution that is
        already split; `text` is ignored then."""
        if steps:
            return steps if self.judges == "steps" else ("".join(steps),)
        if self.judges == "steps" and self._pair.judge == STEPS:
            return split_steps(text)
        thinking = Thinking.of_prompt(self._engines.generator.codec, ())
        return thinking.list_judged(text, self.judges)

    async def score(self, request: ScoreRequest) -> StepScores:
        """Score a solution outside any run, and repeat that after a restart of the verifier."""
        verifier = self._engines.verifier
        return await retry_after_restart(
            verifier, lambda: verifier.score(request), lambda restart_s: None
        )

    @property
    def protocols(self) -> ASGIApp:
        assert self._protocols is not None, "`Service.use_pair` gives pairs that have started"
        return self._protocols

    @property
    def plain(self) -> PlainRequests:
        assert self._plain is not None, "`Service.use_pair` gives pairs that have started"
        return self._plain

    def build_engines(self, grader: MathGrader, texts: TextGroups, *, baseline: bool) -> Engines:
        """Build what a run works with: all optimizations that are configured, or none."""
        features = self._config.features
        separate = engines_have_own_processors(self._config.threads_per_engine)
        chosen = Optimizations.from_features(features, separate_processors=separate)
        return build_engines(
            Optimizations.none() if baseline else chosen,
            self._engines,
            grader=grader,
            texts=texts,
            kv_manager=self._kv_manager,
            judges=self.judges,
        )


def _join(texts: Mapping[str, str | None], *others: str) -> str | None:
    told = [f"{name}: {text}" for name, text in texts.items() if text]
    return "; ".join([*told, *others]) or None


def _build_overflow(size: str, limit: str) -> ContextOverflow:
    return ContextOverflow(
        f"the problem has {size}; the generator's context holds {limit}",
        hint="shorten it",
        param="messages",
    )

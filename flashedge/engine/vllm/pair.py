"""Both vLLM engines of a pair, each in its own process."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from flashedge.config import Config
from flashedge.engine.base import Chunk, ExtendRequest, Generator, Health, Verifier
from flashedge.engine.http_requests import PlainRequests
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import (
    build_engine_memory,
    find_max_sequences,
    find_measured,
    keep_measured,
    read_verifier_card,
    resolve_memory,
)
from flashedge.engine.platform import detect_device_kind, find_vllm, runs_on_cpu
from flashedge.engine.probe import GeneratorProbe, VerifierProbe
from flashedge.engine.self_test_turns import UNTESTED, Turns
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.batch_invariance import check_batch_invariance, check_invariance
from flashedge.engine.vllm.card_check import explain_fixed_kv
from flashedge.engine.vllm.engine_options import EngineOptions, build_options, place_engine
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.engine.vllm.translate import explain_no_passes, explain_spread_sums
from flashedge.errors import ConfigError, EngineError, StoreError
from flashedge.models.checkpoint_shape import find_pair_shapes, read_shape
from flashedge.models.folders import fingerprint_model, resolve_model
from flashedge.models.memory.engine_memory import EngineMemory, check_spread
from flashedge.models.memory.fit import find_explicit, find_need
from flashedge.models.shape import ModelShape
from flashedge.models.specs import ModelSpec, Pair
from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import describe_device
from flashedge.sizes import format_size
from flashedge.types import UNUSED

if TYPE_CHECKING:
    from flashedge.engine.vllm.engine import VllmEngine
    from flashedge.engine.vllm.generator import VllmGenerator
    from flashedge.engine.vllm.verifier import VllmVerifier

log = logging.getLogger(__name__)
ROLES = ("generator", "verifier")
_PROTOCOLS = "flashedge.engine.vllm.serving.protocols"
TRITON_ON_CPU = {"group": "triton.backends", "name": "cpu"}
"""The entry point by which vLLM looks for Triton's backend on a CPU."""
SLOWEST_CARD, SLOWEST_THREAD = 1e12, 2e9
"""Operations a second that the slowest card, and a thread of the slowest CPU, are taken to compute.
A token takes two for each weight. Chosen by hand to tell hung engines from slow ones: ten times as
many would kill slow ones that work; a tenth would find a hang ten times later."""
BOUNDED_KV = "a model has layers with a sliding window or a recurrent state"
"""Why KV memory does not move between engines: what a path needs does not grow with its tokens
alone, as the division assumes."""
_STARTING = Health(state="starting", stage="importing vLLM")


class VllmPair:
    """Generator and verifier of a pair, with their naive twins on the same processes.

    The constructor is cheap: it checks versions, settings and checkpoints, and starts the fork
    server, which imports vLLM in the background. The engines exist once `start` has returned.
    """

    generator: VllmGenerator
    verifier: VllmVerifier
    stock_generator: Generator
    stock_verifier: Verifier

    def __init__(
        self,
        pair: Pair,
        config: Config,
        kv_bytes: tuple[int, int] | None = None,
        *,
        is_planned: bool | None = None,
    ) -> None:
        """kv_bytes: the KV of generator and verifier at their start; None takes the planned sizes.

        is_planned: whether KV sizes were planned, so that a first start may lower them. None takes
        them as planned if `config` and models.toml leave one open. Raises ConfigError, and
        EngineError where no card answers.
        """
        compat.check_version()
        compat.prepare_environment(
            config.threads_per_engine, batch_invariant=check_batch_invariance(config)
        )
        self._pair = pair
        self._generator_path = resolve_model(pair.generator, config)
        self._verifier_path = resolve_model(pair.verifier, config)
        self._is_planned = None in find_explicit(pair, config) if is_planned is None else is_planned
        self._config = config = resolve_memory(pair, config)
        self._layout = find_layout(config)
        shapes = find_pair_shapes(pair, config)
        if not runs_on_cpu():
            for name, cards, shape in zip(ROLES, self._layout.each, shapes, strict=True):
                check_spread(shape, cards.count, name)
        else:
            check_cpu(shapes[0], pair.generator.dtype)
            if config.devices != (None, None):
                log.warning("devices has no effect on a CPU")
        check_second_runner(config)
        given = config.kv_bytes
        self._kv_bytes = kv_bytes or (given.generator or 0, given.verifier or 0)
        start_fork_server()
        # The trial of a card takes as long as importing torch, while vLLM is imported.
        self._kv_fixed = ThreadPoolExecutor(1).submit(explain_fixed_kv, config, self._layout)
        self._is_built = False

    async def start(self) -> None:
        """Start both engines. If one fails, stop both and raise EngineError or CheckpointError."""
        await asyncio.to_thread(self._build)
        self._is_built = True
        try:
            sequences = find_max_sequences(self._config)
            measured = find_measured(self._pair, self._config, sequences)
            if self._pair.has_verifier and not (runs_on_cpu() or measured):
                await self._start_measured()
            else:
                await self._start_both()
        except BaseException:
            await self.stop()
            raise

    async def _start_both(self, *, shrinks: bool = True) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.generator.start(shrinks=shrinks))
                group.create_task(self.verifier.start(shrinks=shrinks))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _start_measured(self) -> None:
        """Start both engines on a card, and keep what each takes for later plans.

        Both start at once, with the memory that was estimated. If that fails on a card that they
        share, they start again one after the other (`_start_in_turn`).
        """
        log.info("this pair starts here for the first time: its memory is measured")
        try:
            # What exceeds the estimate comes out of the card's reserve until the next start.
            await self._start_both(shrinks=not self._layout.is_shared)
        except EngineError as error:
            if not self._layout.is_shared:
                raise
            log.warning("the engines start one after the other: %s", error.line)
            await self.stop()
            await asyncio.to_thread(self._build)
            await self._start_in_turn()
        generator = await self._measure(self.generator)
        verifier = await self._measure(self.verifier)
        is_smaller = self.generator.has_smaller_batch or self.verifier.has_smaller_batch
        if generator is None or verifier is None or is_smaller:
            return
        found, sequences = (generator, verifier), find_max_sequences(self._config)
        try:
            await asyncio.to_thread(keep_measured, self._pair, self._config, sequences, found)
        except StoreError as error:
            log.warning("the measured memory is not kept: %s", error.line)

    async def _measure(self, engine: VllmEngine) -> EngineMemory | None:
        """Call `measure_engine`. Returns None if it fails: the engine can serve all the same."""
        try:
            return await measure_engine(engine)
        except EngineError as error:
            log.warning("the %s could not be measured: %s", engine.options.name, error.line)
            return None

    async def _start_in_turn(self) -> None:
        """Start the generator, then the verifier. If the generator takes more memory than was
        estimated, the verifier gets less KV, unless its size was set."""
        await self.generator.start()
        await self._measure(self.generator)  # it keeps the memory of its largest step
        card = await asyncio.to_thread(read_verifier_card, self._config)
        options = self.verifier.options
        need = find_need(self._pair, self._config, card)
        room = max(card.free_bytes - need.engines[1].total, need.least_kv_bytes[1])
        if self._is_planned and options.kv_start_bytes is None and room < options.kv_bytes:
            log.warning(
                "the generator took more memory than estimated: the verifier gets %s for its KV",
                format_size(room),
            )
            self._set_verifier(replace(options, kv_bytes=room))
        await self.verifier.start()

    async def measure_memory(self) -> None:
        """Measure and keep the memory that the started engines take on a CPU. On a card their first
        start has done this. Raises EngineError, StoreError."""
        if runs_on_cpu():
            generator, verifier = find_pair_shapes(self._pair, self._config)
            found = (
                await measure_engine(self.generator, generator.weights_bytes),
                await measure_engine(self.verifier, verifier.weights_bytes),
            )
            keep_measured(self._pair, self._config, find_max_sequences(self._config), found)

    async def stop(self) -> None:
        if self._is_built:
            await asyncio.gather(self.generator.stop(), self.verifier.stop())

    def health(self) -> tuple[Health, Health]:
        """The health of generator and verifier."""
        if not self._is_built:
            return _STARTING, _STARTING if self._pair.has_verifier else Health(state=UNUSED)
        return self.generator.health(), self.verifier.health()

    async def self_test(self, turns: Turns) -> dict[str, Any]:
        """Test whether the generator's kernels are batch-invariant here (`batch_invariance`), and
        choose the shapes of both engines for deterministic requests (`shape_probe`).

        Returns the tests' results, by the names of `UNTESTED` and some more; the `fingerprint`; and
        a `failure` if the time was too short. Raises EngineDead."""
        from flashedge.engine.vllm.shape_probe import choose_score_shape, choose_shape

        found = dict(UNTESTED)
        try:
            found |= await check_invariance(self.generator, turns)
            if why := explain_no_passes(self.generator.options):
                found["no_passes"] = why
            else:
                found |= await choose_shape(self.generator, turns, on_cpu=runs_on_cpu())
            if not self._pair.has_verifier:
                found["score_shape"] = {}  # no pass will need one
            elif why := explain_spread_sums(self.verifier.options):
                found["no_passes"] = found["no_passes"] or why  # the generator's reason first
            else:
                found |= await choose_score_shape(self.verifier, turns, on_cpu=runs_on_cpu())
        except TimeoutError:
            found["failure"] = "it takes too long on this machine"
        fingerprint = await asyncio.to_thread(build_fingerprint, self._pair, self._config, found)
        return {**found, "fingerprint": fingerprint}

    async def serve_protocols(self, plain: PlainRequests) -> ASGIApp:
        """Build the app of vLLM's HTTP routes. `/score` asks the verifier, others the generator."""
        await asyncio.to_thread(importlib.import_module, _PROTOCOLS)  # a second of imports
        from flashedge.engine.vllm.serving.protocols import VllmProtocols
        from flashedge.engine.vllm.serving.scores import VllmScores

        protocols = VllmProtocols(self.generator.process, self._pair, plain)
        await protocols.prepare()
        scores = VllmScores(self.verifier.process, self._pair.name, plain)
        gc.freeze()  # see `LiveProcess.start`
        return partial(_answer, protocols, scores)

    def build_probes(self) -> tuple[GeneratorProbe, VerifierProbe]:
        """Build what `profiler` measures the started engines with. Raises CheckpointError."""
        from flashedge.engine.vllm.generator import build_params

        generator, verifier = self.generator, self.verifier

        def stream_to_limit(request: ExtendRequest) -> AsyncGenerator[Chunk]:
            changes = {"stop_token_ids": [], "ignore_eos": True}
            params = build_params(request, generator.codec, generator.max_model_len, **changes)
            return generator.stream(request, params)

        limit = find_max_sequences(self._config)
        return (
            GeneratorProbe(
                generator,
                read_shape(self._generator_path, self._pair.generator),
                max_sequences=limit,
                kv_bytes=generator.options.kv_bytes,
                open_stream=stream_to_limit,
            ),
            VerifierProbe(
                verifier,
                read_shape(self._verifier_path, self._pair.verifier),
                max_sequences=limit,
                kv_bytes=verifier.options.kv_bytes,
            ),
        )

    def _build(self) -> None:
        """Create the engines. The imports are heavy, so it runs in a thread."""
        from flashedge.engine.vllm.codec import HFCodec
        from flashedge.engine.vllm.generator import VllmGenerator
        from flashedge.engine.vllm.prm import find_family
        from flashedge.engine.vllm.stock import StockGenerator

        plan, shapes = self._kv_bytes, find_pair_shapes(self._pair, self._config)
        fixed = self._kv_fixed.result()
        if any(shape.bounded for shape in shapes):
            fixed = fixed or BOUNDED_KV
        if fixed and not runs_on_cpu():
            log.warning("the KV memory is divided once, when the engines start: %s", fixed)
        room = fixed or sum(plan)
        entry = self._pair.generator
        options = self._build_options("generator", entry, self._generator_path, plan[0], room)
        options = replace(
            options,
            reasoning_parser=entry.reasoning_parser,
            think_tags=entry.think_tags or options.think_tags,
            compact_json=entry.compact_json,
            # Requests that belong to no run and set no sampling get the pair's.
            extra={**options.extra, "override_generation_config": asdict(self._pair.sampling)},
        )
        codec = HFCodec(
            self._generator_path, entry.chat_template_kwargs, think_tags=entry.think_tags
        )
        self.generator = VllmGenerator(options, codec)
        self.stock_generator = StockGenerator(self.generator)
        entry, path = self._pair.verifier, self._verifier_path
        has_one = self._pair.has_verifier
        self._prm = find_family(entry.family)(path, entry.options) if has_one else None
        self._set_verifier(self._build_options("verifier", entry, path, plan[1], room))
        compat.prepare_decoders()

    def _set_verifier(self, options: EngineOptions) -> None:
        from flashedge.engine.vllm.stock import StockVerifier
        from flashedge.engine.vllm.verifier import UnusedVerifier, VllmVerifier

        prm = self._prm
        self.verifier = VllmVerifier(options, prm) if prm else UnusedVerifier(options)
        self.stock_verifier = StockVerifier(self.verifier)

    def _build_options(
        self, name: str, spec: ModelSpec, path: Path, kv_bytes: int, room: int | str
    ) -> EngineOptions:
        config, on_card = self._config, not runs_on_cpu()
        options = build_options(name, spec, path, kv_bytes, room, config, on_card=on_card)
        shape = find_pair_shapes(self._pair, config)[ROLES.index(name)]
        speed = SLOWEST_CARD if on_card else config.threads_per_engine * SLOWEST_THREAD
        options = replace(
            options,
            slowest_token_s=2 * shape.params / speed,
            bounded=shape.bounded,
            text_only=shape.is_multimodal,
            kv_fixed=options.kv_fixed or (BOUNDED_KV if room == BOUNDED_KV else None),
        )
        return place_engine(options, self._layout, name)


async def _answer(
    protocols: ASGIApp, scores: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    app = scores if scope["path"].endswith("/score") else protocols
    await app(scope, receive, send)


async def measure_engine(engine: VllmEngine, weights_bytes: int | None = None) -> EngineMemory:
    """Measure the memory that an engine takes in addition to its KV, on the first of its cards.

    Its process counts what it holds while it runs the largest step that the batch limit allows.
    weights_bytes: replaces the process's own count, which is 0 on a CPU. Raises EngineError.
    """
    parts = await engine.measure_memory()
    found = build_engine_memory(
        parts if weights_bytes is None else {**parts, "weights": weights_bytes}
    )
    log.info(
        "the %s takes %s besides its KV: weights %s, a step %s, the rest %s",
        engine.options.name,
        *map(format_size, (found.total, found.weights, found.step, found.context)),
    )
    return found


def check_second_runner(config: Config) -> None:
    """Raise ConfigError if vLLM's second model runner is switched on and can't run here."""
    if (
        config.features.second_runner
        and runs_on_cpu()
        and not importlib.metadata.entry_points(**TRITON_ON_CPU)
    ):
        raise ConfigError(
            "second_runner is on, but vLLM's second model runner needs Triton, which has no"
            " backend for a CPU here",
            hint="switch the feature second_runner off",
            param="features",
        )


def check_cpu(shape: ModelShape, dtype: str) -> None:
    """Raise ConfigError if vLLM's build for CPUs can't run the generator."""
    if shape.is_multimodal and importlib.util.find_spec("torchvision") is None:
        raise ConfigError(
            f"vLLM can't load {shape.name} without torchvision, which set-up leaves out on a CPU",
            hint="pip install torchvision==0.28.0+cpu --index-url"
            " https://download.pytorch.org/whl/cpu",
        )
    has_states = shape.bounded is not None and shape.bounded.window is None
    if has_states and dtype != "bfloat16":
        raise ConfigError(
            f"on a CPU vLLM computes the states of {shape.name} in bfloat16 alone",
            hint='set dtype = "bfloat16" in models.toml',
        )


def build_fingerprint(pair: Pair, config: Config, self_test: Mapping[str, Any]) -> dict[str, Any]:
    """Collect what tokens and scores depend on besides the request, as JSON values by name.

    With equal fingerprints, equal deterministic requests get equal bits. self_test: what
    `VllmPair.self_test` found. Reads the beginning and the end of each file of weights.
    """
    import torch

    kind = detect_device_kind()
    try:
        device = describe_device(kind)
    except ProfileError as error:
        log.warning("the device is not part of the fingerprint: %s", error)
        device = {"device": "unknown", "driver": "unknown"}
    return {
        **{role: _describe_model(pair, config, role) for role in pair.models},
        "vllm": " ".join(find_vllm()),
        "torch": importlib.metadata.version("torch"),
        "device": device["device"],
        "driver": None if kind == "cpu" else device["driver"],
        "instructions": torch.backends.cpu.get_cpu_capability() if kind == "cpu" else None,
        "threads": config.threads_per_engine,
        "batch_invariant": config.batch_invariant,
        "generator_passes": self_test["replay_shape"],
        **({"verifier_passes": self_test["score_shape"]} if pair.has_verifier else {}),
        **({"verifier_graphs": True} if config.features.verifier_graphs else {}),
    }


def _describe_model(pair: Pair, config: Config, role: str) -> dict[str, Any]:
    spec, devices = getattr(pair, role), getattr(config.devices, role)
    return {
        "source": spec.source,
        "digest": fingerprint_model(spec, config),
        "dtype": spec.dtype,
        "cards": len(devices) if devices else 1,
    }

"""Both vLLM engines of a pair on one device, each in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashedge.config import Config
from flashedge.engine.base import Chunk, ExtendRequest, Generator, Health, Verifier
from flashedge.engine.platform import choose_block_tokens, runs_on_cpu
from flashedge.engine.probe import GeneratorProbe, VerifierProbe
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.card_trial import card_maps_memory
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.models.checkpoint_shape import read_shape
from flashedge.models.folders import resolve_model
from flashedge.models.kv_plan import plan_kv
from flashedge.models.specs import ModelSpec, Pair

if TYPE_CHECKING:
    from flashedge.engine.vllm.generator import VllmGenerator
    from flashedge.engine.vllm.verifier import VllmVerifier

_STARTING = Health(state="starting")


class VllmPair:
    """Generator and verifier of a pair, with their naive twins.

    The constructor is cheap. It checks versions, settings and checkpoints, and starts the fork
    server, which imports vLLM meanwhile. The engines exist once `start` has returned.

    Args:
        kv_bytes: Of generator and verifier when they start. None takes the memory plan's.

    Raises ConfigError or CheckpointError.
    """

    generator: VllmGenerator
    verifier: VllmVerifier
    stock_generator: Generator
    """The naive twin of `generator`, on the same process."""
    stock_verifier: Verifier
    """The naive twin of `verifier`, on the same process."""

    def __init__(self, pair: Pair, config: Config, kv_bytes: tuple[int, int] | None = None) -> None:
        compat.check_version()
        compat.prepare_environment(config.threads_per_engine)
        self._pair = pair
        self._config = config
        self._kv_bytes = kv_bytes or plan_kv(pair, config)
        self._generator_path = resolve_model(pair.generator, config)
        self._verifier_path = resolve_model(pair.verifier, config)
        compat.start_fork_server()
        self._built = False

    async def start(self) -> None:
        """Start both engines at once. If either fails, stop the other and raise EngineError."""
        await asyncio.to_thread(self._build)
        self._built = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.generator.start())
                group.create_task(self.verifier.start())
        except BaseExceptionGroup as errors:
            await self.stop()
            raise errors.exceptions[0] from None

    async def stop(self) -> None:
        if self._built:
            await asyncio.gather(self.generator.stop(), self.verifier.stop())

    def health(self) -> tuple[Health, Health]:
        """The health of generator and verifier."""
        if not self._built:
            return _STARTING, _STARTING
        return self.generator.health(), self.verifier.health()

    async def self_test(self) -> dict[str, Any]:
        """Test whether the generator's kernels are batch-invariant here. See `self_test.py`."""
        from flashedge.engine.vllm.self_test import check_invariance

        return await check_invariance(self.generator)

    def probes(self) -> tuple[GeneratorProbe, VerifierProbe]:
        """Build what `profiler` measures the started engines by. Raises CheckpointError."""
        from flashedge.engine.vllm.generator import build_params

        generator, verifier = self.generator, self.verifier

        def stream_to_limit(request: ExtendRequest) -> AsyncGenerator[Chunk]:
            """Generate `max_tokens` tokens, past the end of the answer."""
            changes = {"stop_token_ids": [], "ignore_eos": True}
            params = build_params(request, generator.codec, generator.max_model_len, **changes)
            return generator.stream(request, params)

        limit = self._config.max_num_seqs
        spec, path = self._pair.generator, self._generator_path
        kv_bytes = generator.options.kv_bytes
        shape = read_shape(path, spec.dtype, spec.weights_bytes)
        generation = GeneratorProbe(
            generator, shape, max_sequences=limit, kv_bytes=kv_bytes, open_stream=stream_to_limit
        )
        spec, path, kv_bytes = self._pair.verifier, self._verifier_path, verifier.options.kv_bytes
        shape = read_shape(path, spec.dtype, spec.weights_bytes)
        return generation, VerifierProbe(verifier, shape, max_sequences=limit, kv_bytes=kv_bytes)

    def _build(self) -> None:
        """Create the engines. The imports are heavy, so `start` calls it in a thread."""
        from flashedge.engine.vllm.codec import HFCodec
        from flashedge.engine.vllm.generator import VllmGenerator
        from flashedge.engine.vllm.prm import find_family
        from flashedge.engine.vllm.stock import StockGenerator, StockVerifier
        from flashedge.engine.vllm.verifier import VllmVerifier

        config = self._config
        memory_moves = config.scheduling_kv_split and (
            runs_on_cpu() or (config.scheduling_mapped_kv and card_maps_memory())
        )
        plan = self._kv_bytes
        room = sum(plan) if memory_moves else None
        options = self._build_options(
            "generator", self._pair.generator, self._generator_path, plan[0], room
        )
        self.generator = VllmGenerator(options, HFCodec(self._generator_path))
        prm = find_family(self._pair.verifier.family)
        options = self._build_options(
            "verifier", self._pair.verifier, self._verifier_path, plan[1], room
        )
        self.verifier = VllmVerifier(options, prm(self._verifier_path, self._pair.verifier.options))
        self.stock_generator = StockGenerator(self.generator)
        self.stock_verifier = StockVerifier(self.verifier)
        compat.prepare_decoders()

    def _build_options(
        self, name: str, spec: ModelSpec, path: Path, kv_bytes: int, room: int | None
    ) -> EngineOptions:
        """Build the options of one engine.

        Args:
            kv_bytes: KV memory by the plan.
            room: KV memory that the engine can grow to. None fixes it to the plan.
        """
        on_cpu = runs_on_cpu()
        return EngineOptions(
            name=name,
            model=path,
            dtype=spec.dtype,
            max_model_len=spec.max_model_len,
            kv_bytes=room or kv_bytes,
            kv_start_bytes=kv_bytes if room and not on_cpu else None,
            kv_fixed=room is None and not on_cpu,
            max_num_seqs=self._config.max_num_seqs,
            block_tokens=choose_block_tokens(),
            offload_folder=self._config.state_dir / "offload",
            offload_to_file=self._config.scheduling_offload_to_file,
        )

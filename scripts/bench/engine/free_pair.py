"""A pair of the free model and a small verifier, served by our daemon and by `vllm serve`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flashedge.models.specs import ModelSpec
from scripts.bench.daemon import find_free_port, start_daemon
from scripts.bench.engine.free_model import TEMPERATURE, write_free_model, write_small_verifier
from scripts.card.served import build_command, serve

NAME = "free"
"""Of the pair in our daemon."""
POSITIONS = 4096
PROMPT = (5,) * 16
KV_BYTES = 1 << 30
KV_SHARE = 0.2
"""Of a card's memory, for each of vLLM's engines."""

_REGISTRY = """
[generators.free]
source = "{generator}"
dtype = "float32"
max_model_len = {positions}

[verifiers.small]
source = "{verifier}"
dtype = "float32"
max_model_len = {positions}
family = "qwen_prm"
step_token = "<extra_0>"

[pairs.free]
description = "a generator that computes nothing, for the time of everything else"
generator = "free"
verifier = "small"
memory = {{ generator_kv_bytes = {kv_bytes}, verifier_kv_bytes = {kv_bytes} }}
sampling = {{ temperature = {temperature} }}
max_step_tokens = 512
max_path_tokens = 3072
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreePair:
    """Both models, in folders of their own, and models.toml beside them."""

    folder: Path
    generator: Path
    verifier: Path

    @asynccontextmanager
    async def serve_ours(self) -> AsyncIterator[httpx.AsyncClient]:
        """Our daemon, which calls the pair NAME."""
        limits = httpx.Limits(max_connections=None)
        with start_daemon(config_dir=self.folder, pair=NAME) as daemon:
            async with httpx.AsyncClient(
                base_url=daemon.url, timeout=None, limits=limits
            ) as client:
                yield client

    @asynccontextmanager
    async def serve_unmodified(
        self, model: Path, options: Mapping[str, Any] | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        """`vllm serve` of one of the models, with vLLM's own defaults and these options."""
        spec = ModelSpec(source=str(model), dtype="float32", max_model_len=POSITIONS)
        port = find_free_port()
        command = build_command(spec, model, port, KV_SHARE, options or {})
        async with serve(command, port, self.folder / f"{model.name}.log") as client:
            yield client


def write_free_pair(folder: Path, paths: Sequence[Sequence[int]] = ()) -> FreePair:
    """Write the pair into a folder. paths: see `write_free_model`."""
    generator = write_free_model(folder / "generator", paths, positions=POSITIONS)
    verifier = write_small_verifier(folder / "verifier", positions=POSITIONS)
    names = {"generator": generator, "verifier": verifier, "positions": POSITIONS}
    registry = _REGISTRY.format(kv_bytes=KV_BYTES, temperature=TEMPERATURE, **names)
    (folder / "models.toml").write_text(registry)
    return FreePair(folder=folder, generator=generator, verifier=verifier)

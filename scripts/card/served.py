"""A pair on two unmodified `vllm serve` processes, used as a stock search loop would use them.

The engines run with vLLM's own defaults: its newer model runner, asynchronous scheduling, its
sampler, its graphs. A step ends at a stop string, and every score is a request with the whole path.
What is set: the share of the memory (two servers have to fit), the context length, the dtype, and
what makes the verifier's checkpoint a reward model.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import torch

from flashedge.engine.base import (
    Chunk,
    EngineView,
    ExtendRequest,
    Health,
    ScoreRequest,
    StepScores,
)
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.generator import STEP_STOP
from flashedge.engine.vllm.prm import PrmFormat
from flashedge.models.specs import ModelSpec
from flashedge.types import FinishReason

START_S = 900.0
"""Longest start: on a card vLLM compiles and captures graphs."""
MODEL = "served"


class _ServedEngine:
    """The parts of the engines' protocols that `vllm serve` does not offer."""

    def __init__(self, client: httpx.AsyncClient, max_model_len: int) -> None:
        self.suspects = asyncio.Lock()
        """See `engine.base`."""
        self._client = client
        self.max_model_len = max_model_len

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        reply = await self._client.post(path, json={"model": MODEL, **body})
        if reply.status_code != httpx.codes.OK:
            raise RuntimeError(f"vllm serve answered {reply.status_code}: {reply.text[:500]}")
        found: dict[str, Any] = reply.json()
        return found

    def health(self) -> Health:
        return Health(state="ready")

    async def wait_ready(self, timeout_s: float) -> None:
        return

    async def view(self) -> EngineView:
        raise NotImplementedError("vllm serve does not tell its load")

    async def budget(self, kv_bytes: int) -> int:
        raise NotImplementedError("vllm serve keeps its KV memory")

    async def offload(self, *, keep: bool = True) -> int:
        raise NotImplementedError("vllm serve keeps its KV memory")

    async def restore(self) -> int:
        raise NotImplementedError("vllm serve keeps its KV memory")

    async def rank_programs(self, keys: Sequence[str]) -> None:
        """It takes requests as they come."""


class ServedGenerator(_ServedEngine):
    """Implements `engine.base.Generator` by /v1/completions. It samples by vLLM's own seeds, so its
    trees are not those of FlashEdge."""

    speculator = None

    def __init__(self, client: httpx.AsyncClient, spec: ModelSpec, folder: Path) -> None:
        super().__init__(client, spec.max_model_len)
        self.codec = HFCodec(folder, spec.chat_template_kwargs)

    async def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        room = self.max_model_len - len(request.token_ids)
        found = await self._post(
            "/v1/completions",
            {
                "prompt": list(request.token_ids),
                "max_tokens": max(1, min(request.max_tokens, room)),
                "temperature": request.sampling.temperature,
                "top_p": request.sampling.top_p,
                "seed": request.seed,
                "stop": [STEP_STOP] if request.to_boundary else [],
                "stop_token_ids": sorted(self.codec.eos_ids),
                "include_stop_str_in_output": True,
                "return_token_ids": True,
                "logprobs": 0,
            },
        )
        (choice,) = found["choices"]
        ids = tuple(choice["token_ids"])
        yield Chunk(
            token_ids=ids,
            logprobs=tuple(choice["logprobs"]["token_logprobs"][: len(ids)]),
            finish=_read_finish(choice, is_full=room <= request.max_tokens),
        )


def _read_finish(choice: Mapping[str, Any], *, is_full: bool) -> FinishReason:
    """is_full: whether the step's tokens may be ended by the context."""
    if choice["finish_reason"] == "stop":
        at_boundary = choice.get("stop_reason") == STEP_STOP
        return FinishReason.BOUNDARY if at_boundary else FinishReason.STOP
    return FinishReason.LENGTH if is_full else FinishReason.STEP_LIMIT


class ServedVerifier(_ServedEngine):
    """Implements `engine.base.Verifier` by /pooling."""

    def __init__(self, client: httpx.AsyncClient, spec: ModelSpec, prm: PrmFormat) -> None:
        super().__init__(client, spec.max_model_len)
        self._prm = prm

    async def score(self, request: ScoreRequest) -> StepScores:
        ids = list(self._prm.encode_problem(request.problem))
        scored: list[int] = []
        for index, text in enumerate(request.steps):
            step, upto = self._prm.encode_step(text, index)
            scored.append(len(ids) + upto - 1)
            ids += step
        found = await self._post(
            "/pooling", {"input": ids, "task": "token_classify", "encoding_format": "float"}
        )
        rows = torch.tensor(found["data"][0]["data"]).reshape(len(ids), -1)
        scores = [self._prm.read_score(rows[at]) for at in scored[request.num_scored :]]
        return StepScores(scores=tuple(scores), tokens=len(ids), cached_tokens=0)


# ---------------------------------------------------------------- the processes


def build_command(
    spec: ModelSpec, folder: Path, port: int, share: float, extra: Mapping[str, Any]
) -> list[str]:
    """Build the command line of one server. extra: fields of vLLM's engine arguments."""
    flags: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "served_model_name": MODEL,
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len,
        **({"quantization": spec.quantization} if spec.quantization else {}),
        **({"block_size": 32} if runs_on_cpu() else {"gpu_memory_utilization": share}),
        **extra,
    }
    # What `vllm serve` runs; the command itself is missing in the CPU build.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", _format_flag(value)]
    return [*command, "--enforce-eager"] if runs_on_cpu() else command


def _format_flag(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        value = {name: item for name, item in value.items() if item is not None}
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


@asynccontextmanager
async def serve(command: Sequence[str], port: int, log: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server until the block ends. Raises RuntimeError with the end of its log."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TORCH"))}
    env |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    if runs_on_cpu():  # a share of the memory and a core for each of the two
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        env |= {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    with log.open("wb") as out:
        process = _start(command, env, out)
        try:
            url = f"http://127.0.0.1:{port}"
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
                await _wait_ready(client, process, log)
                yield client
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, 30)
            except subprocess.TimeoutExpired:
                process.kill()


def _start(
    command: Sequence[str], env: Mapping[str, str], out: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(list(command), env=dict(env), stdout=out, stderr=subprocess.STDOUT)


async def _wait_ready(
    client: httpx.AsyncClient, process: subprocess.Popen[bytes], log: Path
) -> None:
    async with asyncio.timeout(START_S):
        while True:
            if process.poll() is not None:
                raise RuntimeError(
                    f"vllm serve exited with {process.returncode}:\n{_read_end(log)}"
                )
            try:
                if (await client.get("/health")).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.5)


def _read_end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])

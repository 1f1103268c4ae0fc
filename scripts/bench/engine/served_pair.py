"""A pair served by our daemon, and its models by unmodified `vllm serve`.

`vllm serve` runs with vLLM's own defaults: its newer model runner, asynchronous scheduling, its
sampler, its graphs. What is set: the memory (several servers have to fit), the context length, the
dtype, and what makes the verifier's checkpoint a reward model.
"""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from flashedge.config import load_config
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.vllm import compat
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_pair
from flashedge.models.specs import ModelSpec, Pair
from scripts.bench.daemon import Daemon, find_free_port, start_daemon

START_S = 900.0
"""Longest start: on a card vLLM compiles and captures graphs."""
MODEL = "served"
"""What `vllm serve` calls its model."""
KV_BYTES = 1 << 30
"""KV memory of each engine, ours and theirs, if nothing else is asked for."""
LEAST_SHARE = 0.05
"""Of a card's memory."""
KEPT = "VLLM_USE_FLASHINFER_SAMPLER"
"""The one variable of vLLM that its user has to set where FlashInfer is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A `vllm serve` to be started."""

    spec: ModelSpec
    folder: Path
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of vLLM's engine arguments."""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPair:
    """A pair, and where it is served from."""

    pair: Pair
    generator: Path
    verifier: Path
    """Folders of the models."""
    kv_bytes: int = KV_BYTES
    config_dir: Path | None = None
    """Of models.toml, if it is not the user's."""

    def start_ours(self, **settings: Any) -> AbstractContextManager[Daemon]:
        """Our daemon. settings: fields of `Config`."""
        if self.config_dir:
            settings["config_dir"] = self.config_dir
        settings["kv_bytes"] = self.kv_bytes
        return start_daemon(pair=self.pair.name, **settings)

    def build_generator(
        self, extra: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> Server:
        return self._build(self.pair.generator, self.generator, extra or {}, env or {})

    def build_verifier(self) -> Server:
        compat.prepare_environment()
        from flashedge.engine.vllm.prm import find_family

        options = self.pair.verifier.options
        extra = find_family(self.pair.verifier.family)(self.verifier, options).engine_extra
        return self._build(self.pair.verifier, self.verifier, extra, {})

    def _build(
        self, spec: ModelSpec, folder: Path, extra: Mapping[str, Any], env: Mapping[str, str]
    ) -> Server:
        extra = {"kv_cache_memory_bytes": self.kv_bytes, **extra}
        return Server(spec=spec, folder=folder, extra=extra, env=env)


def find_served_pair(name: str, kv_bytes: int = KV_BYTES, folder: Path | None = None) -> ServedPair:
    """Find a pair of the registry. folder: of models.toml, if it is not the user's."""
    config = load_config({"config_dir": str(folder)} if folder else {})
    pair = find_pair(name, config)
    return ServedPair(
        pair=pair,
        generator=resolve_model(pair.generator, config),
        verifier=resolve_model(pair.verifier, config),
        kv_bytes=kv_bytes,
        config_dir=folder,
    )


def connect(url: str) -> httpx.AsyncClient:
    """A client that waits as long as it takes, for any number of requests at once. A server closes
    idle connections after 5 s, so the client does before."""
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
    return httpx.AsyncClient(base_url=url, timeout=None, limits=limits)


# ---------------------------------------------------------------- the processes


def build_command(server: Server, port: int) -> list[str]:
    """Build the command line of one server."""
    spec = server.spec
    flags: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "served_model_name": MODEL,
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len,
        **({"quantization": spec.quantization} if spec.quantization else {}),
        # The KV memory is set; vLLM refuses to start where less than this share is free.
        **({"block_size": 32} if runs_on_cpu() else {"gpu_memory_utilization": LEAST_SHARE}),
        **server.extra,
    }
    # What `vllm serve` runs; the command itself is missing in the CPU build.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(server.folder)]
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", _format_flag(value)]
    return [*command, "--enforce-eager"] if runs_on_cpu() else command


def _format_flag(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        value = {name: item for name, item in value.items() if item is not None}
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


@asynccontextmanager
async def serve(
    servers: Mapping[str, Server], logs: Path
) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Start all servers at once, and run them until the block ends.

    logs: the folder of their logs, by name. Raises RuntimeError with the end of a server's log.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TORCH"))}
    env |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    if KEPT in os.environ:
        env[KEPT] = os.environ[KEPT]
    if runs_on_cpu():  # a core for each
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        env |= {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    clients: dict[str, httpx.AsyncClient] = {}
    try:
        for name, server in servers.items():
            port = find_free_port()
            with (logs / f"{name}.log").open("wb") as out:
                processes[name] = _start(build_command(server, port), {**env, **server.env}, out)
            clients[name] = connect(f"http://127.0.0.1:{port}")
        for name, process in processes.items():
            await _wait_ready(clients[name], process, logs / f"{name}.log")
        yield clients
    finally:
        for client in clients.values():
            await client.aclose()
        for process in processes.values():
            process.terminate()
        for process in processes.values():
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

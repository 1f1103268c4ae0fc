"""What the scripts that measure a card share: their options, and what they write as they go."""

import argparse
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from flashedge.config import load_config
from flashedge.engine.platform import runs_on_cpu
from scripts.bench.daemon import DATA, ROOT
from scripts.bench.engine.served_pair import Server, serve
from scripts.card.machine import describe_machine

BUNDLED = "bundled"
KV_OPTION: dict[str, Any] = {"type": int, "default": 6 << 30, "help": "of each engine of PAIR"}


class Results:
    """The figures of all parts, written whenever one is known."""

    def __init__(self, path: Path, pair: str) -> None:
        self._path = path
        self._began = time.monotonic()
        self.found: dict[str, Any] = {"machine": describe_machine(), "pair": pair}
        self.failed: list[str] = []
        self.skipped: dict[str, str] = {}
        """What was not measured, and why."""

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return round(time.monotonic() - self._began, 1)

    def add(self, part: str, figures: Any) -> None:
        self.found[part] = figures
        self.found["seconds"] = self.seconds
        self._path.write_text(json.dumps(self.found, indent=1))
        print(f"{self.seconds:7.1f} s  {part}: {json.dumps(figures)}", flush=True)

    def skip(self, part: str, why: str) -> None:
        self.skipped[part] = why
        self.add(f"{part} skipped", why)

    @asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """Note an error of the block, and go on."""
        try:
            yield
        except Exception as error:
            self.failed.append(name)
            self.add(f"{name} failed", repr(error)[-1500:])

    async def start_servers(
        self,
        stack: AsyncExitStack,
        part: str,
        servers: Mapping[str, Server],
        logs: Path,
        clients: dict[str, httpx.AsyncClient],
    ) -> None:
        """Start `vllm serve`, all at once, and put their clients among the others. If one fails,
        all are left out. logs: a folder."""
        async with self.part(part):
            began = time.monotonic()
            clients.update(await stack.enter_async_context(serve(servers, logs)))
            self.add(part, round(time.monotonic() - began, 1))


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def parse_options(about: str, name: str, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the options that the scripts share, and read the command line.

    name: begins the name of the default output folder.
    """
    parser.description = about
    parser.add_argument("--pair", help="default: the setting `pair`")
    parser.add_argument("--problems", type=Path, help="JSON lines of problem and answer")
    parser.add_argument("--output", type=Path, help=f"default: runs/{name}-PAIR")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with the bundled pair")
    asked = parser.parse_args()
    if not asked.rehearse and runs_on_cpu():
        parser.error("this machine has no card; --rehearse runs every part on the CPU")
    asked.pair = BUNDLED if asked.rehearse else load_config({"pair": asked.pair}).pair
    if asked.problems is None and asked.pair != BUNDLED:
        parser.error(f"--problems is needed: the pair {asked.pair} has no problems of its own")
    asked.problems = (asked.problems or DATA / "heldout.jsonl").resolve()
    asked.output = make_folder((asked.output or ROOT / "runs" / f"{name}-{asked.pair}").resolve())
    if asked.rehearse:
        asked.kv_bytes = 1 << 28
    return asked

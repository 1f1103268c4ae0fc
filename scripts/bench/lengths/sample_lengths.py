"""Sample many outputs of each of many problems, and write how long they are.

    python -m scripts.bench.lengths.sample_lengths runs/lengths/sampled.jsonl
        [--problems 200] [--outputs 50] [--url http://127.0.0.1:8642]

Asks a daemon's generator for `--outputs` answers of each of the first held-out problems, with a
seed, at temperature 0.8, up to the end of its context. Writes one line a problem: the tokens of
every answer with the one that ends it, and whether the context cut it. It starts a daemon of its
own unless `--url` names one. Problems that the file has already are left out, so it goes on where
it was interrupted. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx

from flashedge.cli.progress import show_bar
from scripts.bench.daemon import Daemon, read_problems, report, start_daemon

MODEL = "bundled"
TEMPERATURE = 0.8
AT_ONCE = 4
"""Problems that are asked at once. The daemon takes 256 choices."""


async def sample(
    url: str, problems: Sequence[Mapping[str, str]], outputs: int, path: Path
) -> list[dict[str, Any]]:
    """Ask for the problems' outputs and append a row for each to the file. Returns the rows."""
    limit, rows = asyncio.Semaphore(AT_ONCE), []
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        with show_bar("sampling", len(problems), unit="problems") as advance:

            async def ask(problem: Mapping[str, str]) -> None:
                async with limit:
                    row = await sample_problem(client, problem, outputs)
                rows.append(row)
                with path.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row) + "\n")
                advance(1)

            async with asyncio.TaskGroup() as tasks:
                for problem in problems:
                    tasks.create_task(ask(problem))
    return rows


async def sample_problem(
    client: httpx.AsyncClient, problem: Mapping[str, str], outputs: int
) -> dict[str, Any]:
    """Ask for one problem's outputs. Raises RuntimeError if the tokens don't add up to those that
    the daemon counted."""
    seed = int(problem["id"].rpartition("-")[2])
    answer = await client.post(
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": problem["problem"]}],
            "n": outputs,
            "temperature": TEMPERATURE,
            "seed": seed * outputs % 2**31,  # output i draws with this seed + i
            "return_token_ids": True,
        },
    )
    answer.raise_for_status()
    body = answer.json()
    row = parse_answer(body)
    usage = body["usage"]
    if sum(row["lengths"]) != usage["completion_tokens"]:
        raise RuntimeError(f"{sum(row['lengths'])} tokens are here, {usage} counted")
    return {"id": problem["id"], "prompt_tokens": usage["prompt_tokens"], **row}


def parse_answer(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read the tokens of each choice, and whether a limit cut it."""
    choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
    return {
        "lengths": [len(choice["token_ids"]) for choice in choices],
        "is_cut": [choice["finish_reason"] == "length" for choice in choices],
    }


def list_missing(problems: Sequence[Mapping[str, str]], path: Path) -> list[Mapping[str, str]]:
    """The problems that the file does not have yet."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    done = {json.loads(line)["id"] for line in lines}
    return [problem for problem in problems if problem["id"] not in done]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--outputs", type=int, default=50)
    parser.add_argument("--url", help="of a running daemon; left out: starts one")
    asked = parser.parse_args()
    asked.path.parent.mkdir(parents=True, exist_ok=True)
    missing = list_missing(read_problems("heldout", asked.problems), asked.path)
    given = Daemon(asked.url, 0, {}) if asked.url else None
    with nullcontext(given) if given else start_daemon() as daemon:
        started = time.perf_counter()
        rows = asyncio.run(sample(daemon.url, missing, asked.outputs, asked.path))
        seconds = time.perf_counter() - started
    tokens = [length for row in rows for length in row["lengths"]]
    report(
        problems=len(rows),
        outputs=asked.outputs,
        kept_from_before=asked.problems - len(missing),
        tokens=sum(tokens),
        longest=max(tokens, default=0),
        cut=sum(flag for row in rows for flag in row["is_cut"]),
        seconds=round(seconds, 1),
    )


if __name__ == "__main__":
    main()

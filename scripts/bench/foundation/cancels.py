"""Are all KV blocks free again after 200 random cancels and disconnects?

    python -m scripts.bench.foundation.cancels

A block that a cancelled run keeps is lost until the next restart, so the daemon's block counts
before and after are compared. Half of the runs are cancelled by `POST /v1/runs/{id}/cancel`, half
by a client that disconnects; each ends when `/v1/status` shows the chosen engine at work, at least
100 during a decode and 50 during a score. Runs that are to end during a score use `baseline` with
128 paths, because a suffix score takes one engine step, too short to be caught. The last line is
JSON.
"""

import asyncio
import random

import httpx

from scripts.bench.daemon import read_problems, report, start_daemon

COUNT = 200
LEAST = {"generator": 100, "verifier": 50}


async def measure(url: str) -> None:
    rng = random.Random(0)
    items = [p["problem"] for p in read_problems("heldout", 50)]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        before = await read_views(client)
        hit = {"generator": 0, "verifier": 0, "between": 0}
        ways = {"cancel": 0, "disconnect": 0}
        for i in range(COUNT):
            target = "verifier" if i % 5 < 2 else "generator"
            way = ("cancel", "disconnect")[i % 2]
            where = await end_one_run(client, rng, items[i % len(items)], i, target, way)
            hit[where] += 1
            ways[way] += 1
        await asyncio.sleep(2)
        after = await read_views(client)
        runs = (await client.get("/v1/runs", params={"limit": 500})).json()["data"]
        answer = await client.post("/v1/solve", json={"problem": items[0], "n": 4})
    report(
        cancels=COUNT,
        found_at_work=hit,
        enough=all(hit[k] >= v for k, v in LEAST.items()),
        ways=ways,
        before=before,
        after=after,
        ended={s: sum(r["status"] == s for r in runs) for s in {r["status"] for r in runs}},
        next_solve=answer.status_code,
    )


async def end_one_run(
    client: httpx.AsyncClient, rng: random.Random, problem: str, seed: int, target: str, way: str
) -> str:
    """Start a run, end it while `target` works on it, and return which engine was at work."""
    body = {"problem": problem, "n": 64, "seed": seed, "stream": True}
    if target == "verifier":
        body |= {"n": 128, "baseline": True}
    async with client.stream("POST", "/v1/solve", json=body) as stream:
        run_id = stream.headers["x-flashedge-run"]
        where = await wait_for_work(client, target, rng.random() * 0.1)
        if way == "cancel":
            await client.post(f"/v1/runs/{run_id}/cancel")
    await client.get(f"/v1/runs/{run_id}/events")  # ends with the run
    return where


async def wait_for_work(client: httpx.AsyncClient, target: str, delay_s: float) -> str:
    """Wait until the engine `target` has work. Returns "between" if it never has."""
    await asyncio.sleep(delay_s)
    for _ in range(400):
        engines = (await client.get("/v1/status")).json()["engines"]
        view = engines[target].get("view")
        if view and view["running"] + view["waiting"] > 0:
            return target
    return "between"


async def read_views(client: httpx.AsyncClient) -> dict[str, dict[str, int]]:
    engines = (await client.get("/v1/status")).json()["engines"]
    names = ("running", "waiting", "blocks_used", "blocks_total", "quota_blocks")
    return {k: {n: e["view"][n] for n in names} for k, e in engines.items()}


def main() -> None:
    with start_daemon() as served:
        asyncio.run(measure(served.url))


if __name__ == "__main__":
    main()

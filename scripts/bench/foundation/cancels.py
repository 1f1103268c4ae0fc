"""200 random cancels and disconnects: are all KV blocks free afterwards?

Half by `POST /v1/runs/{id}/cancel`, half by a client that goes away. Each is made when `/v1/status`
shows the engine in question at work: at least 100 in mid-decode, 50 in mid-score. A suffix score is
done in one engine step, too short to be caught: those runs score whole paths (`baseline`), 128 of
them a level, which takes several steps.
"""

from __future__ import annotations

import asyncio
import random

import httpx

from scripts.bench.daemon import daemon, problems, report

COUNT = 200
LEAST = {"generator": 100, "verifier": 50}


async def measure(url: str) -> None:
    rng = random.Random(0)
    items = [p["problem"] for p in problems("heldout", 50)]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        before = await views(client)
        hit = {"generator": 0, "verifier": 0, "between": 0}
        ways = {"cancel": 0, "disconnect": 0}
        for i in range(COUNT):
            target = "verifier" if i % 5 < 2 else "generator"
            way = ("cancel", "disconnect")[i % 2]
            where = await one(client, rng, items[i % len(items)], i, target, way)
            hit[where] += 1
            ways[way] += 1
        await asyncio.sleep(2)
        after = await views(client)
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


async def one(
    client: httpx.AsyncClient, rng: random.Random, problem: str, seed: int, target: str, way: str
) -> str:
    """Start a run, wait until `target` works on it, end it; returns which engine was at work."""
    body = {"problem": problem, "n": 64, "seed": seed, "stream": True}
    if target == "verifier":
        body |= {"n": 128, "baseline": True}
    async with client.stream("POST", "/v1/solve", json=body) as stream:
        run_id = stream.headers["x-flashedge-run"]
        where = await at_work(client, target, rng.random() * 0.1)
        if way == "cancel":
            await client.post(f"/v1/runs/{run_id}/cancel")
    await client.get(f"/v1/runs/{run_id}/events")  # ends with the run
    return where


async def at_work(client: httpx.AsyncClient, target: str, delay_s: float) -> str:
    await asyncio.sleep(delay_s)
    for _ in range(400):
        engines = (await client.get("/v1/status")).json()["engines"]
        view = engines[target].get("view")
        if view and view["running"] + view["waiting"] > 0:
            return target
    return "between"


async def views(client: httpx.AsyncClient) -> dict[str, dict[str, int]]:
    engines = (await client.get("/v1/status")).json()["engines"]
    names = ("running", "waiting", "blocks_used", "blocks_total", "quota_blocks")
    return {k: {n: e["view"][n] for n in names} for k, e in engines.items()}


def main() -> None:
    with daemon() as served:
        asyncio.run(measure(served.url))


if __name__ == "__main__":
    main()

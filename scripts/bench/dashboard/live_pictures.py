"""Pictures of the dashboard in the middle of searches of the bundled pair, to be looked at.

    python -m scripts.bench.dashboard.live_pictures --out runs/pictures

The snapshots of the tests show recorded runs under a scripted daemon. These show a daemon with real
engines: 64 paths of beam search, 20 rollouts of MCTS and 30 samples of self-consistency, each on
three sizes of a terminal at once. Needs rsvg-convert. The last line is JSON.
"""

import argparse
import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashedge.client.async_client import AsyncClient
from flashedge.tui.app import DashboardApp
from scripts.bench.daemon import ROOT, read_problems, report, start_daemon
from scripts.screenshots import place_characters

SIZES = [(80, 24), (120, 40), (200, 60)]
SEARCHES: Mapping[str, tuple[dict[str, Any], int]] = {
    "beam-64": ({"strategy": "beam", "n": 64}, 200),
    "mcts-20": ({"strategy": "mcts", "n": 20}, 150),
    "self-consistency-30": ({"strategy": "self_consistency", "n": 30}, 10),
}
"""Name of the picture: the search, and how many nodes have ended when the picture is taken."""

LOOK_S = 0.02
"""Between two looks at the size of the tree."""

PATIENCE_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "pictures")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    problem = read_problems("heldout", 1)[0]["problem"]
    with start_daemon(early_exit="off") as served:
        nodes = {
            name: asyncio.run(picture(served.url, name, {"problem": problem, **search}, least, out))
            for name, (search, least) in SEARCHES.items()
        }
    report(folder=str(out), nodes=nodes)


async def picture(
    url: str, name: str, search: Mapping[str, Any], least: int, out: Path
) -> dict[str, int]:
    """Take the pictures of one search. Returns the nodes that each showed."""
    async with AsyncClient(url) as client:
        screens = [asyncio.create_task(watch(url, name, size, least, out)) for size in SIZES]
        await asyncio.sleep(3.0)  # the dashboards are open
        run = await client.submit(search)
        nodes = await asyncio.gather(*screens)
        if (await client.run(run["id"]))["status"] == "running":
            await client.cancel(run["id"])
    return {f"{w}x{h}": count for (w, h), count in zip(SIZES, nodes, strict=True)}


async def watch(url: str, name: str, size: tuple[int, int], least: int, out: Path) -> int:
    """Open a dashboard and draw it once `least` nodes have ended.

    Raises TimeoutError if it never shows so many of a run that is under way.
    """
    async with AsyncClient(url) as client:
        app = DashboardApp(client)
        async with app.run_test(size=size) as pilot, asyncio.timeout(PATIENCE_S):
            while app.state.shown is None or not is_growing(app, least):
                await pilot.pause(LOOK_S)
            await pilot.pause()
            width, height = size
            target = out / f"{name}-{width}x{height}.png"
            draw(app.export_screenshot(), target)
            return len(app.state.shown.nodes)


def is_growing(app: DashboardApp, least: int) -> bool:
    """Whether the shown run is under way and so many of its nodes have ended."""
    row, shown = app.state.chosen_row, app.state.shown
    if row is None or not row.live or shown is None:
        return False
    return len(shown.nodes) - len(shown.growing) >= least


def draw(svg: str, target: Path) -> None:
    subprocess.run(
        ["rsvg-convert", "-o", str(target)], input=place_characters(svg).encode(), check=True
    )


if __name__ == "__main__":
    main()

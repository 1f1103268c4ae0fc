"""Draws the dashboard over a real search that is under way: docs/screenshots/live-120x40.png.

    python -m scripts.live_picture [--out docs/screenshots/live-120x40.png] [-n 16] [--nodes 60]

The bundled pair solves a held-out problem by beam search on a daemon of its own, and the picture is
taken when so many steps have ended. Nothing of it is scripted. Needs rsvg-convert. The last line is
JSON.
"""

import argparse
import asyncio
import subprocess
from pathlib import Path

from flashedge.client.async_client import AsyncClient
from flashedge.tui.app import DashboardApp
from scripts.bench.daemon import read_problems, report, start_daemon
from scripts.screenshots import DOCS, place_characters

SIZE = (120, 40)
PATIENCE_S = 120.0


async def watch(url: str, asked: argparse.Namespace) -> tuple[int, str]:
    """Returns how many nodes the picture shows, and the picture as SVG. Raises TimeoutError if so
    many steps never end."""
    problem = max((row["problem"] for row in read_problems("heldout", 20)), key=len)
    async with AsyncClient(url) as client:
        app = DashboardApp(client)
        async with app.run_test(size=SIZE) as pilot, asyncio.timeout(PATIENCE_S):
            await client.submit({"problem": problem, "strategy": "beam", "n": asked.n})
            while True:
                await pilot.pause(0.01)
                shown = app.state.shown
                if shown is not None and len(shown.nodes) - len(shown.growing) >= asked.nodes:
                    break
            await pilot.pause()
            return len(shown.nodes), app.export_screenshot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DOCS / "live-120x40.png")
    parser.add_argument("-n", type=int, default=16, help="paths")
    parser.add_argument("--nodes", type=int, default=60, help="steps that have ended")
    asked = parser.parse_args()
    with start_daemon() as served:
        nodes, svg = asyncio.run(watch(served.url, asked))
    picture = place_characters(svg).encode()
    subprocess.run(["rsvg-convert", "-o", str(asked.out)], input=picture, check=True)
    report(picture=str(asked.out), nodes=nodes)


if __name__ == "__main__":
    main()

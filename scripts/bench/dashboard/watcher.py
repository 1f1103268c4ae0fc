"""The dashboard with a stopwatch: it notes when each event was folded and when it was painted."""

import json
import sys
import time
from array import array
from collections import defaultdict
from pathlib import Path

from flashedge.client.async_client import AsyncClient
from flashedge.events import Progress
from flashedge.tui.app import DashboardApp


class Watcher(DashboardApp):
    """times: by run, (3 * num_events,) number, folded and painted (monotonic seconds) of each."""

    def __init__(self, url: str) -> None:
        super().__init__(AsyncClient(url))
        self.times: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self.frames = 0
        self._folded: list[tuple[str, int, float]] = []

    def fold_inbox(self) -> None:
        inbox = self._inbox
        super().fold_inbox()
        now = time.monotonic()
        for run, items in inbox.items():
            self._folded += [(run, seq, now) for seq, e in items if not isinstance(e, Progress)]

    def paint(self) -> None:
        super().paint()
        self.frames += 1
        shown, self._folded = self._folded, []
        if shown:
            self.call_after_refresh(self._note_paint, shown)

    def _note_paint(self, shown: list[tuple[str, int, float]]) -> None:
        now = time.monotonic()
        for run, seq, folded in shown:
            self.times[run].extend((seq, folded, now))


def main(url: str, out: str) -> None:
    app = Watcher(url)
    app.run()
    times = {run: list(of_run) for run, of_run in app.times.items()}
    Path(out).write_text(json.dumps({"times": times, "frames": app.frames}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

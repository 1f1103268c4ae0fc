"""The runs that `calibrate` makes: what it does when the daemon goes away for a moment."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from flashedge import events
from flashedge.cli.calibrate.runs import run_problems
from flashedge.config import load_config
from flashedge.files.problems import LabelledProblem
from flashedge.runtime.request.spec import RunSpec
from flashedge.types import Problem
from tests.support.cli_rig import with_daemon
from tests.support.fake_daemon import BatchDaemon, encode_events

TEXT = "right 12"
SPEC = RunSpec(
    problem=Problem.from_text(TEXT), pair="bundled", strategy="self_consistency", n=4
).to_json()
STORY: list[events.Event] = [
    events.RunStarted(config=SPEC, queue_s=0.0),
    events.CertaintyUpdated(certainty=1.0, answers=4, progress=4, tokens=10, answer="12"),
    events.RunFinished(result={"answer": "12", "usage": {"tree_tokens": 10}}),
]


class LeavingDaemon(BatchDaemon):
    """Its first stream of events breaks."""

    streams = 0

    def send_events(self, run: str, after: int) -> Any:
        self.streams += 1
        if self.streams == 1:
            raise httpx.ReadError("gone")
        return httpx.Response(200, content=encode_events(list(enumerate(STORY, 1))[after:]))


def test_a_stream_that_breaks_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = LeavingDaemon()
    with_daemon(monkeypatch, daemon)
    problem = LabelledProblem(index=0, id="p", text=TEXT, answer="12")
    settings = {"strategy": "self_consistency", "n": 4}
    (recording,) = run_problems((problem,), settings, "work", load_config(environ={}))
    assert (recording.problem, recording.answer, recording.tokens) == (TEXT, "12", 10)
    assert daemon.streams == 2

"""A load arrives at its times, on virtual time, and each program's end is recorded."""

import asyncio

import httpx
import pytest

from flashedge.client.async_client import AsyncClient
from flashedge.errors import DaemonError, EngineDead, QueueFull
from flashedge.files.problems import FileProblem
from flashedge.scheduling.programs.program import Kind
from scripts.lab.benchmark.load.open_load import DaemonServer, Served, run_load, stream_chat
from scripts.lab.benchmark.load.plan import PlannedProgram
from scripts.lab.benchmark.load.timings import End, ProgramRecord
from scripts.lab.sim.clock import run_virtual
from tests.lab.load_rig import LoadDaemon


def plan(*times: float, kind: Kind = Kind.SEARCH, first: int = 0) -> list[PlannedProgram]:
    given = {"kind": kind, "client": "a"}
    return [
        PlannedProgram(number=first + i, problem=first + i, arrived_s=at, seed=i, **given)  # type: ignore[arg-type]
        for i, at in enumerate(times)
    ]


class Desk:
    """Serves one program at a time, 10 s each, in the order of arrival."""

    def __init__(self, *errors: Exception | None) -> None:
        self._lock = asyncio.Lock()
        self._errors = dict(enumerate(errors))
        self.left: list[int] = []

    async def serve(self, program: PlannedProgram) -> Served:
        now = asyncio.get_running_loop().time
        try:
            async with self._lock:
                if error := self._errors.get(program.number):
                    raise error
                started_s = now()
                await asyncio.sleep(10.0)
        except asyncio.CancelledError:
            self.left.append(program.number)
            raise
        return Served(started_s=started_s, first_token_s=started_s + 1, output_tokens=5)


def run(programs: list[PlannedProgram], desk: Desk) -> list[ProgramRecord]:
    records: list[ProgramRecord] = []
    ids = [f"p{i}" for i in range(9)]
    run_virtual(run_load(programs, desk.serve, records.append, problem_ids=ids, part=1))
    return records


def test_programs_do_not_wait_to_arrive() -> None:
    records = run(plan(3.0, 4.0, 25.0), Desk())
    assert [(r.number, r.problem) for r in records] == [(0, "p0"), (1, "p1"), (2, "p2")]
    assert [r.wait_s for r in records] == pytest.approx([0.0, 9.0, 0.0])
    assert [r.first_token_s for r in records] == pytest.approx([1.0, 10.0, 1.0])
    assert [r.latency_s for r in records] == pytest.approx([10.0, 19.0, 10.0])
    assert {(r.end, r.part, r.late_s) for r in records} == {(End.FINISHED, 1, 0.0)}
    assert run([], Desk()) == []


def test_refused_and_failed_programs_are_recorded() -> None:
    desk = Desk(QueueFull("full", retry_after_s=1.0), EngineDead("died"))
    ends = {r.number: (r.end, r.error, r.latency_s) for r in run(plan(0.0, 1.0, 2.0), desk)}
    assert ends[0] == (End.REFUSED, "full", None)
    assert ends[1] == (End.FAILED, "died", None)
    assert ends[2][0] is End.FINISHED


def test_a_lost_daemon_ends_the_load_and_keeps_what_finished() -> None:
    desk, records = Desk(None, DaemonError("gone")), list[ProgramRecord]()
    load = run_load(plan(0.0, 1.0, 2.0, 99.0), desk.serve, records.append, problem_ids=range(4))
    with pytest.raises(DaemonError, match="gone"):
        run_virtual(load)
    assert [r.number for r in records] == [0]
    assert desk.left == [2]  # it was open, and the fourth never arrived


# ---------------------------------------------------------------- over HTTP

PROBLEMS = [
    FileProblem(index=i, id=f"p{i}", text=text)
    for i, text in enumerate(("right 4", "right 7", "fail", "full"))
]


def serve(daemon: LoadDaemon, programs: list[PlannedProgram]) -> dict[int, ProgramRecord]:
    records: list[ProgramRecord] = []
    bodies = {"search": {"strategy": "beam", "n": 4}, "chat": {"max_tokens": 9}}
    ids = [problem.id for problem in PROBLEMS]

    async def work() -> None:
        async with AsyncClient("http://daemon", transport=daemon) as client:
            server = DaemonServer(client=client, problems=PROBLEMS, model="bundled", **bodies)
            await run_load(programs, server.serve, records.append, problem_ids=ids)

    run_virtual(work())
    return {record.number: record for record in records}


def test_searches_are_runs() -> None:
    daemon = LoadDaemon()
    records = serve(daemon, plan(0.0, 0.1, 0.2, 0.3))
    finished = [End.FINISHED] * 2
    assert [records[i].end for i in range(4)] == [*finished, End.FAILED, End.REFUSED]
    assert (records[0].output_tokens, records[0].answer) == (10, "4")
    assert records[2].error == "it died"
    body = next(iter(daemon.submitted.values()))
    asked = {"problem": "right 4", "strategy": "beam", "n": 4, "seed": 0}
    assert asked.items() <= body.items()
    submissions = [r for r in daemon.requests if r.url.path == "/v1/runs"]
    assert {r.headers["x-flashedge-client"] for r in submissions} == {"a"}


def test_chats_are_streams() -> None:
    daemon = LoadDaemon()
    records = serve(daemon, [*plan(0.0, 0.1, kind=Kind.CHAT), *plan(0.3, kind=Kind.CHAT, first=3)])
    assert (records[0].output_tokens, records[0].answer) == (5, "4")
    assert records[3].end is End.REFUSED
    body = daemon.bodies("/v1/chat/completions")[1]
    asked = {"model": "bundled", "max_tokens": 9, "seed": 1, "stream": True}
    assert asked.items() <= body.items()
    assert body["messages"] == [{"role": "user", "content": "right 7"}]


async def test_a_reply_that_breaks_off_is_an_error() -> None:
    def cut(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')

    async with AsyncClient("http://daemon", transport=httpx.MockTransport(cut)) as client:
        with pytest.raises(DaemonError, match="middle of its reply"):
            [piece async for piece in stream_chat(client, {}, {})]

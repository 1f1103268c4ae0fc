"""`solve --input` and `score --input` against a daemon in a transport: records, resuming, refusals,
exit codes."""

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from flashedge.batch import attempts
from flashedge.batch.attempts import Attempts
from flashedge.batch.batch import FIRST_JOBS
from flashedge.cli.solve.batch import TokenSpeed
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.follow import RetryPolicy
from tests.support.cli_rig import Cli, Done, Patch, cli_for, with_daemon
from tests.support.fake_daemon import BatchDaemon, ScoreDaemon

THREE = (
    {"id": "a", "problem": "right 19", "answer": "19"},
    {"problem": "wrong", "answer": 7},
    {"id": 5, "problem": "right x+1"},
)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setattr(follow, "UNATTENDED", RetryPolicy(first_s=0.0, max_retries=2))
    monkeypatch.setattr(follow, "MIN_QUEUE_PAUSE_S", 0.01)
    monkeypatch.setattr(attempts, "LOOK_S", 0.01)
    return cli_for(tmp_path, monkeypatch, capfd)


@pytest.fixture
def daemon(monkeypatch: Patch) -> BatchDaemon:
    return with_daemon(monkeypatch, BatchDaemon())


class Folder:
    """in.jsonl, out.jsonl and a command over them."""

    def __init__(self, path: Path, cli: Cli, command: str, *lines: object) -> None:
        self.source, self.target = path / "in.jsonl", path / "out.jsonl"
        self._cli, self._command = cli, command
        self.give(*lines)

    def give(self, *lines: object) -> None:
        self.source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def solve(self, *options: str) -> Done:
        files = ("--input", str(self.source), "--output", str(self.target))
        return self._cli(self._command, *files, *options)

    def ends(self, code: int, said: str, *options: str) -> Done:
        done = self.solve(*options)
        assert (done.code, said in done.err) == (code, True), done
        return done

    def records(self) -> dict[Any, Any]:
        found = [json.loads(line) for line in self.target.read_text().splitlines()]
        by_id = {r["id"]: r for r in found}
        assert len(by_id) == len(found)
        return by_id


@pytest.fixture
def folder(tmp_path: Path, cli: Cli, daemon: BatchDaemon) -> Folder:
    return Folder(tmp_path, cli, "solve", *THREE)


def test_one_record_a_problem_and_a_summary(folder: Folder, daemon: BatchDaemon) -> None:
    done = folder.ends(0, "", "-n", "8", "--budget-tokens", "500", "--seed", "3")
    assert done.out == f"3 of 3 solved, 50.0% right (1 of 2), 30 tokens: {folder.target}\n"
    found = folder.records()
    assert set(found) == {"a", 2, 5}
    run = found["a"].pop("run")
    figures = {"tokens": 10, "seconds": 0.5, "cut_by": None}
    assert found["a"] == {"id": "a", "answer": "19", "correct": True, **figures}
    assert (found[2]["correct"], "correct" in found[5]) == (False, False)
    asked = {"problem": "right 19", "id": run, "pair": "bundled", "n": 8, "seed": 3, "priority": 1}
    assert daemon.submitted[run] == {**asked, "token_budget": 500}
    folder.target.unlink()
    told = json.loads(folder.solve("--json").out)
    assert (told["problems"], told["correct"], told["graded"], told["tokens"]) == (3, 1, 2, 30)


def test_a_batch_may_be_urgent_and_part_of_a_program(folder: Folder, daemon: BatchDaemon) -> None:
    folder.ends(0, "", "--priority", "0", "--program", "homework")
    assert {body["priority"] for body in daemon.submitted.values()} == {0}
    asked = [r for r in daemon.requests if r.method == "POST" and r.url.path == "/v1/runs"]
    assert {r.headers["x-flashedge-client"] for r in asked} == {"batch"}
    assert {r.headers["x-flashedge-program"] for r in asked} == {"homework"}
    folder.ends(0, "", "--priority", "3")
    assert len(asked) == 3, "the order changes no result, so the batch goes on"


def test_a_full_queue_and_a_lost_daemon_are_waited_for(folder: Folder, daemon: BatchDaemon) -> None:
    daemon.full, daemon.lost = 5, 2
    folder.ends(0, "", "--jobs", "1")
    assert len(daemon.runs) == len(folder.records()) == 3
    folder.target.unlink()
    folder.ends(0, "")
    assert len(daemon.runs) == 6, "without its output a batch begins anew"


def test_failures_are_kept_and_the_batch_goes_on(folder: Folder, daemon: BatchDaemon) -> None:
    folder.give({"problem": "fail 1", "answer": "1"}, {"problem": "long"}, *THREE[::2])
    for _ in range(2):  # a second time changes nothing
        assert "2 of 4 solved" in folder.ends(1, "").out
        assert len(daemon.runs) == 3
    found = folder.records()
    assert found[1]["error"] == {"code": "engine_dead", "message": "died"}
    assert found[2]["error"]["code"] == "context_length_exceeded"
    assert (found[1]["answer"], found[1]["tokens"], "correct" in found[1]) == (None, None, False)
    folder.ends(1, "", "--retry-failed")
    assert len(daemon.runs) == 4
    assert folder.records()[1]["correct"] is True
    assert folder.records()[1]["run"].endswith("-0-1")


@pytest.mark.parametrize("kept", range(0, 400, 13))
def test_a_killed_batch_goes_on_where_torn(folder: Folder, daemon: BatchDaemon, kept: int) -> None:
    folder.ends(0, "")
    whole = folder.records()
    folder.target.write_bytes(folder.target.read_bytes()[:kept])
    assert folder.ends(0, "").err == ""
    assert folder.records() == whole
    assert len(daemon.submitted) == 3


def test_runs_that_ended_meanwhile_are_adopted(folder: Folder, daemon: BatchDaemon) -> None:
    """Finished: its result counts. Failed: so does that. Cancelled or interrupted: done again."""
    folder.give(*({"problem": f"right {i}"} for i in range(4)))
    folder.solve()
    folder.target.write_text("")
    names = sorted(daemon.runs)
    daemon.runs[names[0]]["answer"] = "adopted"
    for name, status in zip(names[1:], ("failed", "cancelled", "interrupted"), strict=True):
        daemon.runs[name] = {"id": name, "status": status}
    daemon.runs[names[1]]["error"] = {"code": "engine_error", "message": "no"}
    folder.ends(1, "")
    found = folder.records()
    assert (found[1]["answer"], found[2]["error"]["code"]) == ("adopted", "engine_error")
    assert [found[i]["run"][-1] for i in (3, 4)] == ["1", "1"]
    assert len(daemon.runs) == 6


def press_ctrl_c(daemon: BatchDaemon, monkeypatch: Patch, *looks: int) -> None:
    """Send SIGINT at these looks at a run."""
    answer, left = daemon.answer, list(looks)

    def interrupting(request: Any) -> Any:
        if left and daemon.looks >= left[0]:
            left.pop(0)
            os.kill(os.getpid(), signal.SIGINT)
        return answer(request)

    monkeypatch.setattr(daemon, "handler", interrupting)


def test_ctrl_c_ends_the_batch(folder: Folder, daemon: BatchDaemon, monkeypatch: Patch) -> None:
    """Runs end, those that wait are removed."""
    folder.give(*({"problem": p} for p in ("soon 1", "waits 2", "right 3", "right 4")))
    press_ctrl_c(daemon, monkeypatch, 4)
    said = "stopping when all searches in flight are done (1); Ctrl-C again cancels them"
    done = folder.ends(130, said, "--jobs", "2")
    assert "1 of 4 done; the same command resumes" in done.err
    assert list(folder.records()) == [1], "what ran is not lost"
    waited = [name[-3:] for name in daemon.cancelled]
    assert waited == [name[-3:] for name in daemon.deleted] == ["1-0"], "nothing is left of it"
    monkeypatch.setattr(daemon, "handler", daemon.answer)
    daemon.waits = False
    folder.ends(0, "")
    assert set(folder.records()) == {1, 2, 3, 4}


def test_a_second_ctrl_c(folder: Folder, daemon: BatchDaemon, monkeypatch: Patch) -> None:
    """It cancels open runs and keeps results."""
    folder.give({"problem": "right 1"}, {"problem": "slow 2"}, {"problem": "right 3"})
    press_ctrl_c(daemon, monkeypatch, 8, 12)
    assert "the same command resumes" in folder.ends(130, "cancelled 1 run", "--jobs", "2").err
    assert [name[-3:] for name in daemon.cancelled] == ["1-0"]
    assert (1 in folder.records(), 2 in folder.records()) == (True, False)


def test_a_deleted_run_ends_its_problem(
    folder: Folder, daemon: BatchDaemon, monkeypatch: Patch
) -> None:
    def deleting(request: Any) -> Any:
        if daemon.looks == 2:
            daemon.runs.clear()
        return daemon.answer(request)

    folder.give({"problem": "slow 1"})
    monkeypatch.setattr(daemon, "handler", deleting)
    folder.ends(1, "")
    assert folder.records()[1]["error"]["code"] == "cancelled"


def test_problems_in_flight(folder: Folder, daemon: BatchDaemon, monkeypatch: Patch) -> None:
    """They are few before the first result, and submitted in the file's order."""
    folder.give({"problem": "right 1"}, *({"problem": f"slow {number}"} for number in range(9)))
    press_ctrl_c(daemon, monkeypatch, 40, 50)
    folder.ends(130, "", "--jobs", "8")
    assert len(daemon.submitted) == FIRST_JOBS + 2, "the one result has let one more in"
    monkeypatch.setattr(daemon, "handler", daemon.answer)
    folder.target.unlink()
    daemon.submitted.clear()
    folder.give(*({"problem": f"right {number}"} for number in range(9)))
    folder.ends(0, "", "--jobs", "6")
    assert [int(name.split("-")[2]) for name in daemon.submitted] == list(range(9))


def test_the_progress_bar_tells_what_runs_and_how_fast() -> None:
    speed = TokenSpeed()
    assert speed.measure(0, 0.0) == 0
    for at_s in range(1, 9):
        speed.measure(100 * at_s, float(at_s))
    per_s = speed.measure(750, 9.0)  # a run that ended is not counted yet
    assert per_s == pytest.approx(100 * 4 / 5)


def test_another_input_or_other_settings_are_refused(folder: Folder, daemon: BatchDaemon) -> None:
    folder.solve("-n", "8")
    before = folder.target.read_bytes()
    folder.ends(2, "was made with n 8, not n 9", "-n", "9")
    folder.ends(2, "was made with n 8, not no n")
    folder.give(*THREE[:2])
    folder.ends(2, "made from another input", "-n", "8")
    assert (folder.target.read_bytes(), len(daemon.runs)) == (before, 3)


def test_an_output_that_is_not_this_batchs(folder: Folder, daemon: BatchDaemon) -> None:
    folder.target.write_text("precious\n")
    folder.ends(2, "is no batch's output")
    assert folder.target.read_text() == "precious\n"
    assert sorted(p.name for p in folder.target.parent.glob("*.json*")) == ["in.jsonl", "out.jsonl"]
    folder.target.unlink()
    folder.solve()
    with (folder.target.parent / "out.jsonl.batch.json").open() as sheet:
        fcntl.flock(sheet, fcntl.LOCK_EX)
        folder.ends(2, "another process writes")


def test_what_ends_the_batch(folder: Folder, daemon: BatchDaemon) -> None:
    folder.ends(2, "refused: not_found", "--set", "branching=1000")
    assert (folder.records(), daemon.runs) == ({}, {})
    folder.target.unlink()
    daemon.lost = 10**6
    folder.ends(4, "the same command resumes")
    assert folder.records() == {}
    daemon.lost = 0
    folder.ends(0, "")


@pytest.mark.parametrize(
    ("line", "said"),
    [({"answer": 1}, "line 2: problem is missing"), (THREE[0], "two problems have the id 'a'")],
)
def test_a_bad_line_is_named(folder: Folder, daemon: BatchDaemon, line: object, said: str) -> None:
    folder.give(THREE[0], line)
    folder.ends(2, said)
    assert (daemon.requests, folder.target.exists()) == ([], False)


def test_flags_that_do_not_go_together(cli: Cli, folder: Folder) -> None:
    source, target = str(folder.source), str(folder.target)
    files = ("--input", source, "--output", target)
    for arguments, said in (
        (("p", "--jobs", "2"), "--jobs needs --input"),
        (("p", "--output", target), "--output needs --input"),
        (("p", "--retry-failed"), "--retry-failed needs --input"),
        (("p", "--budget-tokens-total", "5"), "--budget-tokens-total needs --input"),
        (("p", *files), "either --input or one problem"),
        (("--input", source), "--input needs --output"),
        (("--input", source, "--output", source), "is the input"),
        ((*files, "--jobs", "0"), "must be in [1, 64]"),
        (("--input", source, "--output", "/nowhere/r"), "no folder /nowhere"),
        ((*files, "--budget-tokens-total", "2"), "too few"),
    ):
        done = cli("solve", *arguments)
        assert (done.code, said in " ".join(done.err.split())) == (2, True), done.err
    cli.ends(5, "can't read /nowhere", "solve", "--input", "/nowhere", "--output", target)
    cli.ends(5, "can't write", "solve", "--input", source, "--output", target + 300 * "n")


def test_what_sure_problems_leave_goes_to_the_unsure(folder: Folder, daemon: BatchDaemon) -> None:
    """4 x 250 tokens; the easy two leave 480: 288 for the unsure one, 192 for the surer."""
    hard = ({"problem": "hard 530 0.25", "answer": "530"}, {"problem": "hard 900 0.5"})
    folder.give(*hard, {"problem": "right 1"}, {"problem": "right 2"})
    done = folder.ends(0, "", "--budget-tokens-total", "1000", "--jobs", "3")
    budgets = {name[-3:]: body["token_budget"] for name, body in daemon.submitted.items()}
    first = dict.fromkeys(("0-0", "1-0", "2-0", "3-0"), 250)
    assert budgets == {**first, "0-1": 250 + 288, "1-1": 250 + 192}
    continued = next(body for name, body in daemon.submitted.items() if name.endswith("0-1"))
    assert continued["continues"].endswith("-0-0")
    found = folder.records()
    assert (found[1]["correct"], found[1]["cut_by"], found[1]["tokens"]) == (True, None, 530)
    assert (found[2]["cut_by"], found[2]["tokens"], found[2]["seconds"]) == ("budget", 442, 1.0)
    assert "992 tokens of 1,000: used up, 1 run cut short" in done.out


def test_a_budget_goes_on_after_a_kill(folder: Folder, daemon: BatchDaemon) -> None:
    folder.give({"problem": "hard 900 0.6"}, {"problem": "hard 600 0.2"}, {"problem": "right 1"})
    options = ("--budget-tokens-total", "1200", "--jobs", "1")
    folder.solve(*options)
    whole, asked = folder.records(), dict(daemon.submitted)
    lines = folder.target.read_text().splitlines(keepends=True)
    for kept in range(len(lines)):
        folder.target.write_text("".join(lines[:kept]))
        folder.ends(0, "", *options)
        assert (folder.records(), daemon.submitted) == (whole, asked)


def test_a_cap_for_each_holds_in_a_shared_budget(folder: Folder, daemon: BatchDaemon) -> None:
    folder.give({"problem": "hard 900 0.6"}, {"problem": "right 1"})
    folder.solve("--budget-tokens-total", "1000", "--budget-tokens", "700")
    assert max(body["token_budget"] for body in daemon.submitted.values()) == 700
    assert folder.records()[1]["tokens"] == 700


@asynccontextmanager
async def leave(sent: asyncio.Event, answer: Any) -> AsyncIterator[Attempts]:
    """The attempts of a run whose submission was given up once it was `sent`."""
    async with AsyncClient("http://daemon", transport=httpx.MockTransport(answer)) as client:
        attempts = Attempts(client, "key", {})
        work = asyncio.create_task(attempts.run(0, "slow"))
        await sent.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        yield attempts


async def test_a_run_being_submitted_is_cancelled_once_it_exists(daemon: BatchDaemon) -> None:
    """What was sent arrives, whether or not the sender waits for the answer."""
    sent, arrives, arrivals = asyncio.Event(), asyncio.Event(), []

    async def receive(request: httpx.Request) -> Any:
        await arrives.wait()
        return daemon.answer(request)

    async def slow(request: httpx.Request) -> Any:
        if request.method != "POST" or request.url.path != "/v1/runs":
            return daemon.answer(request)
        arrivals.append(asyncio.create_task(receive(request)))
        sent.set()
        return await asyncio.shield(arrivals[-1])

    async with leave(sent, slow) as attempts:
        asyncio.get_running_loop().call_soon(arrives.set)
        assert await attempts.cancel_open() == 1
        await asyncio.gather(*arrivals)
    assert [run["status"] for run in daemon.runs.values()] == ["cancelled"]


async def test_a_run_that_never_arrived_does_not_count_as_cancelled(daemon: BatchDaemon) -> None:
    sent = asyncio.Event()

    def lose(request: httpx.Request) -> Any:
        if request.method == "POST" and request.url.path == "/v1/runs":
            sent.set()
            raise httpx.ConnectError("away")
        return daemon.answer(request)

    async with leave(sent, lose) as attempts:
        assert await attempts.cancel_open() == 0


PROBLEM, RIGHT, WRONG = "What is 12 + 7?", "12 + 7.\n\nSo 19.", "It is\t18."


@pytest.fixture
def scorer(monkeypatch: Patch) -> ScoreDaemon:
    return with_daemon(monkeypatch, ScoreDaemon())


@pytest.fixture
def scores(tmp_path: Path, cli: Cli, scorer: ScoreDaemon) -> Folder:
    first = {"problem": PROBLEM, "solution": [RIGHT, WRONG], "label": 1, "error": "of another call"}
    second = {"id": "b", "problem": PROBLEM, "steps": ["So 19."]}
    return Folder(tmp_path, cli, "score", first, second)


def test_each_line_comes_back_with_its_scores(scores: Folder, scorer: ScoreDaemon) -> None:
    scorer.full = 2
    done = scores.ends(0, "", "--aggregate", "min", "--jobs", "2")
    assert done.out == f"2 of 2 scored: {scores.target}\n"
    records = scores.records()
    first = records[1]
    assert (first["problem"], first["solution"], first["label"]) == (PROBLEM, [RIGHT, WRONG], 1)
    assert first["scores"] == [
        {"score": 0.06, "steps": ["12 + 7.", "So 19."], "step_scores": [0.07, 0.06], "tokens": 9},
        {"score": 0.09, "steps": [WRONG], "step_scores": [0.09], "tokens": 9},
    ]
    assert records["b"]["scores"][0]["step_scores"] == [0.06]
    asked = [body for body in scorer.bodies("/v1/score") if "steps" in body][-1]
    settings = {"model": "bundled", "aggregate": "min", "priority": 1}
    assert asked == {"problem": PROBLEM, "steps": ["So 19."], **settings}


def test_the_same_command_resumes(scores: Folder, scorer: ScoreDaemon) -> None:
    scorer.is_down = True
    scores.ends(4, "0 of 2 done; the same command resumes")
    scorer.is_down = False
    scores.ends(0, "")
    asked, written = len(scorer.bodies("/v1/score")), scores.target.read_bytes()
    scores.ends(0, "")
    assert len(scorer.bodies("/v1/score")) == asked
    assert scores.target.read_bytes() == written
    scores.ends(2, "aggregate", "--aggregate", "min")


def test_a_line_that_is_refused_has_an_error(scores: Folder, scorer: ScoreDaemon) -> None:
    scores.give(
        {"id": 1, "problem": PROBLEM, "solution": "a long text"},
        {"id": 2, "problem": PROBLEM, "solution": RIGHT},
    )
    told = {"output": str(scores.target), "lines": 2, "failed": 1}
    assert json.loads(scores.ends(1, "", "--json").out) == told
    error = {"code": "context_length_exceeded", "message": "600 tokens"}
    assert scores.records()[1]["error"] == error
    asked = len(scorer.bodies("/v1/score"))
    scores.ends(1, "", "--retry-failed")
    assert len(scorer.bodies("/v1/score")) == asked + 1
    scores.target.unlink()
    scores.ends(2, "no max", "--aggregate", "max")  # wrong settings end the command


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"solution": "x"}, "problem is missing"),
        ({"problem": "p"}, "either solution or steps"),
        ({"problem": "p", "solution": "x", "steps": ["x"]}, "either solution or steps"),
        ({"id": 1.5, "problem": "p", "solution": "x"}, "id is neither"),
        ({"id": "first", "problem": "p", "solution": "x"}, "another line has the id 'first'"),
        (["p", "x"], "not an object"),
    ],
)
def test_a_line_that_is_wrong_is_named(scores: Folder, line: object, message: str) -> None:
    scores.give({"id": "first", "problem": "p", "solution": "x"}, line)
    assert "in.jsonl, line 2" in scores.ends(2, message).err.replace("\n", "")

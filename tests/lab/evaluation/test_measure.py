"""An evaluation over scripted HTTP: what it asks for, keeps, and gives up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.client.async_client import AsyncClient
from flashedge.errors import ConfigError, Conflict, EngineDead, FlashEdgeError, StoreError
from flashedge.files.problems import LabelledProblem
from flashedge.types import MAX_SEED
from scripts.lab.evaluation.measure import Measurer
from scripts.lab.evaluation.records import ProblemRecord, Settings, open_records
from tests.support.fake_daemon import EvalDaemon, build_completion

SETTINGS = Settings(pair="bundled", models="m", problems="p", n=(2, 3), temperature=0.7, seed=5)
SAMPLES = [
    build_completion("0.5", 0.9, 0.1),
    build_completion(None, 0.4),
    build_completion("1/2", 0.2, 0.3),
]
BEAMS = {2: "1/2", 3: "9"}


class Notes:
    """Watches by writing down."""

    def __init__(self) -> None:
        self.runs = 0
        self.records: dict[int, ProblemRecord] = {}
        self.failed: dict[str, FlashEdgeError] = {}

    def run_done(self) -> None:
        self.runs += 1

    def problem_done(self, record: ProblemRecord) -> None:
        self.records[record.index] = record

    def problem_failed(self, problem: LabelledProblem, error: FlashEdgeError) -> None:
        self.failed[problem.id] = error


def problems(count: int) -> list[LabelledProblem]:
    return [
        LabelledProblem(index=i, id=f"p{i}", text=f"problem {i}", answer="\\frac{1}{2}")
        for i in range(count)
    ]


async def measured(daemon: EvalDaemon, count: int, in_flight: int = 2) -> Notes:
    notes, grader = Notes(), MathGrader()
    try:
        async with AsyncClient("http://daemon", transport=daemon) as client:
            await Measurer(
                client=client,
                grader=grader,
                settings=SETTINGS,
                count_steps=lambda ids, steps: (len(ids),) * steps,
                watcher=notes,
                in_flight=in_flight,
            ).measure(problems(count))
    except BaseExceptionGroup as group:
        raise AssertionError("an error comes alone") from group
    finally:
        await grader.close()
    return notes


async def test_what_is_asked_for_and_what_is_kept() -> None:
    daemon = EvalDaemon(SAMPLES, "7", BEAMS)
    notes = await measured(daemon, 2)
    asked = [body for body in daemon.submitted.values() if body["problem"] == "problem 0"]
    assert [(b["strategy"], b["n"], b["temperature"]) for b in asked] == [
        ("best_of_n", 1, 0.0),
        ("best_of_n", 3, 0.7),
        ("beam", 2, 0.7),
        ("beam", 3, 0.7),
    ]
    assert all(b["pair"] == "bundled" and b["early_exit"] is False for b in asked)
    seeds = {
        b["problem"]: {x["seed"] for x in daemon.submitted.values() if x["problem"] == b["problem"]}
        for b in daemon.submitted.values()
    }
    first, second = seeds["problem 0"], seeds["problem 1"]
    assert len(first) == len(second) == 1
    assert first != second
    assert all(0 <= seed <= MAX_SEED for seed in first | second)
    record = notes.records[0]
    assert [chain.answer for chain in record.chains] == ["0.5", None, "0.5"]
    assert [chain.right for chain in record.chains] == [True, False, True]
    assert record.chains[0].scores == (0.9, 0.1)
    assert record.chains[0].step_tokens == (5, 5)
    assert not record.greedy.right
    assert {n: chain.right for n, chain in record.beams.items()} == {2: True, 3: False}
    assert notes.runs == 8
    assert sorted(daemon.deleted) == sorted(daemon.submitted)


async def test_a_full_queue_and_a_cut_stream_are_waited_out() -> None:
    daemon = EvalDaemon(SAMPLES, "7", BEAMS, full=3, cuts=2)
    notes = await measured(daemon, 1)
    assert notes.records[0].chains[0].right
    assert len(daemon.submitted) == 4


async def test_a_problem_that_does_not_fit_is_told_and_passed_over() -> None:
    daemon = EvalDaemon(SAMPLES, "7", BEAMS, failures={"problem 0": "context_length_exceeded"})
    notes = await measured(daemon, 3)
    assert list(notes.failed) == ["p0"]
    assert sorted(notes.records) == [1, 2]


async def test_a_dead_engine_ends_the_work_and_cancels_what_is_open() -> None:
    daemon = EvalDaemon(
        SAMPLES, "7", BEAMS, hold=frozenset({"problem 0"}), failures={"problem 2": EngineDead.code}
    )
    with pytest.raises(EngineDead):
        await measured(daemon, 3)
    assert len(daemon.cancelled) == 1
    assert daemon.submitted[daemon.cancelled[0]]["problem"] == "problem 0"


async def test_cancelled_it_cancels_its_runs_and_keeps_what_is_done() -> None:
    daemon = EvalDaemon(SAMPLES, "7", BEAMS, hold=frozenset({"problem 1"}))
    notes = Notes()
    async with AsyncClient("http://daemon", transport=daemon) as client:
        grader = MathGrader()
        work = asyncio.create_task(
            Measurer(
                client=client,
                grader=grader,
                settings=SETTINGS,
                count_steps=lambda ids, steps: (),
                watcher=notes,
                in_flight=1,
            ).measure(problems(3))
        )
        await daemon.holding.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await grader.close()
    assert list(notes.records) == [0]
    (cancelled,) = daemon.cancelled
    assert daemon.submitted[cancelled]["problem"] == "problem 1"
    assert daemon.submitted[cancelled]["n"] == 3


# ---------------------------------------------------------------- the file of records


async def some_record() -> ProblemRecord:
    return (await measured(EvalDaemon(SAMPLES, "7", BEAMS), 1)).records[0]


async def test_records_are_read_back_as_they_were(tmp_path: Path) -> None:
    record = await some_record()
    with open_records(tmp_path / "new" / "p.jsonl", SETTINGS) as kept:
        assert kept.records == {}
        kept.append(record)
        kept.append(replace(record, index=4))
    with open_records(tmp_path / "new" / "p.jsonl", SETTINGS) as kept:
        assert kept.records == {0: record, 4: replace(record, index=4)}


async def test_a_line_that_a_crash_cut_is_dropped(tmp_path: Path) -> None:
    record, path = await some_record(), tmp_path / "p.jsonl"
    with open_records(path, SETTINGS) as kept:
        kept.append(record)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"index": 1, "id": "p')
    with open_records(path, SETTINGS) as kept:
        assert list(kept.records) == [0]
        kept.append(replace(record, index=1))
    assert path.read_bytes().startswith(whole)
    with open_records(path, SETTINGS) as kept:
        assert list(kept.records) == [0, 1]


@pytest.mark.parametrize(
    "changed", [{"n": (2,)}, {"temperature": 0.1}, {"seed": 6}, {"problems": "q"}, {"models": "x"}]
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changed: dict[str, object]) -> None:
    with open_records(tmp_path / "p.jsonl", SETTINGS):
        pass
    before = (tmp_path / "p.jsonl").read_bytes()
    with pytest.raises(Conflict, match=next(iter(changed))) as caught:
        open_records(tmp_path / "p.jsonl", replace(SETTINGS, **changed))  # type: ignore[arg-type]
    assert "--output" in caught.value.line
    assert (tmp_path / "p.jsonl").read_bytes() == before


def test_another_file_and_a_second_writer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("a letter\n")
    with pytest.raises(ConfigError, match="no file of finished work"):
        open_records(tmp_path / "foreign", SETTINGS)
    assert (tmp_path / "foreign").read_text() == "a letter\n"
    with (
        open_records(tmp_path / "p.jsonl", SETTINGS),
        pytest.raises(Conflict, match="another process"),
    ):
        open_records(tmp_path / "p.jsonl", SETTINGS)
    with pytest.raises(StoreError, match="can't write"):
        open_records(tmp_path / "foreign" / "p.jsonl", SETTINGS)

"""An evaluation over scripted HTTP: what it asks for, keeps, and gives up."""

from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers

from flashedge.client.async_client import AsyncClient
from flashedge.errors import Conflict, EngineDead, FlashEdgeError, StoreError
from flashedge.files.problems import LabelledProblem
from flashedge.search.step_rules import split_steps
from flashedge.types import MAX_SEED
from scripts.lab.evaluation.measure import (
    Measurer,
    ProblemRecord,
    Settings,
    open_records,
    step_counter,
)
from tests.support.fake_daemon import EvalDaemon, build_completion
from tests.support.paths import ROOT

SETTINGS = Settings(pair="bundled", models="m", problems="p", n=(2, 3), temperature=0.7, seed=5)
HALF = build_completion("0.5", 0.9, 0.1)
SAMPLES = [HALF, build_completion(None, 0.4), build_completion("1/2", 0.2, 0.3)]
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


async def measured(daemon: EvalDaemon, count: int) -> Notes:
    notes = Notes()
    watch = {name: getattr(notes, name) for name in ("run_done", "problem_done", "problem_failed")}
    watch["count_steps"] = lambda ids, steps: (len(ids),) * steps
    try:
        async with AsyncClient("http://daemon", transport=daemon) as client:
            measurer = Measurer(client=client, settings=SETTINGS, in_flight=2, **watch)
            await measurer.measure(problems(count))
    except BaseExceptionGroup as group:
        raise AssertionError("an error comes alone") from group
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
    seeds = {(b["problem"], b["seed"]) for b in daemon.submitted.values()}
    (_, first), (_, second) = sorted(seeds)  # one for each problem
    assert first != second
    assert all(0 <= seed <= MAX_SEED for seed in (first, second))
    record = notes.records[0]
    found = [(chain.answer, chain.right) for chain in record.chains]
    assert found == [("0.5", True), (None, False), ("0.5", True)]
    assert (record.chains[0].scores, record.chains[0].step_tokens) == ((0.9, 0.1), (5, 5))
    assert not record.greedy.right
    assert {n: chain.right for n, chain in record.beams.items()} == {2: True, 3: False}
    assert notes.runs == 8
    assert sorted(daemon.deleted) == sorted(daemon.submitted)


async def test_a_full_queue_and_a_cut_stream_are_waited_out() -> None:
    daemon = EvalDaemon(SAMPLES, "7", BEAMS, full=3, cuts=2)
    notes = await measured(daemon, 1)
    assert notes.records[0].chains[0].right
    assert len(daemon.submitted) == 4


async def test_a_dead_engine_ends_the_work_and_cancels_what_is_open() -> None:
    dead = {"problem 2": EngineDead.code}
    daemon = EvalDaemon(SAMPLES, "7", BEAMS, hold=frozenset({"problem 0"}), failures=dead)
    with pytest.raises(EngineDead):
        await measured(daemon, 3)
    (cancelled,) = daemon.cancelled
    assert daemon.submitted[cancelled]["problem"] == "problem 0"


# ---------------------------------------------------------------- the file of records


async def test_records_are_read_back_as_they_were(tmp_path: Path) -> None:
    record = (await measured(EvalDaemon(SAMPLES, "7", BEAMS), 1)).records[0]
    with open_records(tmp_path / "new" / "p.jsonl", SETTINGS) as kept:
        assert kept.records == {}
        kept.append(record)
        kept.append(replace(record, index=4))
    with open_records(tmp_path / "new" / "p.jsonl", SETTINGS) as kept:
        assert kept.records == {0: record, 4: replace(record, index=4)}
    with pytest.raises(StoreError, match="can't write"):
        open_records(tmp_path / "new" / "p.jsonl" / "q", SETTINGS)
    for changed in ({"n": (2,)}, {"temperature": 0.1}, {"problems": "q"}, {"models": "x"}):
        with pytest.raises(Conflict, match=next(iter(changed))):
            open_records(tmp_path / "new" / "p.jsonl", replace(SETTINGS, **changed))  # type: ignore[arg-type]


GENERATOR = ROOT / "flashedge" / "bundled" / "generator"
TEXT = "Let b = 40.\n\ng = b - 20 = 20.\n\nThe answer is \\boxed{20}."


def test_tokens_of_each_step() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(GENERATOR / "tokenizer.json"))
    steps = split_steps(TEXT)
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    count = step_counter(GENERATOR)
    found = count(ids, len(steps))
    assert len(found) == len(steps) == 3
    assert sum(found) == len(ids)
    at = 0
    for step, length in zip(steps, found, strict=True):
        assert tokenizer.decode(ids[at : at + length]).strip() == step.strip()
        at += length
    assert count(ids, len(steps) + 1) == ()
    # an end token behind a blank line is no step
    ids = tokenizer.encode(TEXT + "\n\n", add_special_tokens=False).ids
    assert sum(count([*ids, tokenizer.token_to_id("<|im_end|>")], 3)) == len(ids) + 1

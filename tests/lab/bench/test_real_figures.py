"""Figures on real problems: what is solved, kept and counted, on made records."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.errors import ConfigError, NotFound, RequestError
from scripts.bench.certainty.samples import make_vote
from scripts.bench.real.__main__ import main
from scripts.bench.real.measure import list_tasks, order_problems
from scripts.bench.real.records import (
    FinishedPath,
    Record,
    RecordFile,
    Way,
    find_samples,
    parse_ways,
    read_records,
)
from scripts.bench.real.table import choose_among, choose_answer, write_tables, write_votes

PAIR = {"name": "coder", "models": "abc", "generator": "g", "verifier": "v", "temperature": 0.8}
PAIR |= {"max_step_tokens": 256, "max_path_tokens": 1024, "seed": 0}
RECORD = Record(
    pair=PAIR,
    file="made",
    place=0,
    problem="p0",
    id=0,
    way="greedy",
    alone=False,
    known="4",
    machine={"commit": "c", "processor": "2 x x86_64"},
)


def build_path(answer: str | None, score: float, tokens: int = 10) -> FinishedPath:
    """One that is right if its answer is 4."""
    right = answer == "4"
    return FinishedPath(
        answer=answer, right=right, score=score, scores=(score,), tokens=tokens, finish="stop"
    )


PATHS = (build_path("5", 0.2), build_path("5", 0.3), build_path("4", 0.9), build_path(None, 1.0))
SAMPLES = replace(RECORD, way="samples-4", paths=PATHS, tree_tokens=40, verifier_tokens=200)
SAMPLES = replace(SAMPLES, verifier_cached_tokens=120)


def write_problems(path: Path, count: int) -> Path:
    lines = (
        json.dumps({"problem": f"{path.stem}: what is {i}?", "answer": i}) for i in range(count)
    )
    path.write_text("\n".join(lines))
    return path


# ---------------------------------------------------------------- what is solved


def test_ways_are_read_as_strategies_are() -> None:
    assert parse_ways("greedy, vote-4,best-of-n-16,vote-4") == (
        Way("greedy", 1),
        Way("vote", 4),
        Way("best_of_n", 16),
    )
    assert [str(way) for way in parse_ways("greedy,beam-16")] == ["greedy", "beam-16"]
    with pytest.raises(RequestError, match="no number of paths"):
        parse_ways("beam")
    with pytest.raises(NotFound, match="voting"):
        parse_ways("voting-4")


def test_the_problems_have_one_order_and_the_files_take_turns(tmp_path: Path) -> None:
    files = [write_problems(tmp_path / "a.jsonl", 30), write_problems(tmp_path / "b.jsonl", 30)]
    whole, some = order_problems(files, [None, None]), order_problems(files, [4, 2])
    for name, count in (("a", 4), ("b", 2)):
        every = [at.problem.id for at in whole if at.file == name]
        assert [at.problem.id for at in some if at.file == name] == every[:count]
        assert [at.place for at in some if at.file == name] == list(range(count))
        assert every != sorted(every)
        assert sorted(every) == list(range(1, 31))
    assert [at.file for at in some] == ["a", "b", "a", "a", "b", "a"]


def test_one_set_of_samples_serves_all_that_choose_among_them(tmp_path: Path) -> None:
    problems = order_problems([write_problems(tmp_path / "made.jsonl", 2)], [None])
    ways = parse_ways("greedy,vote-4,weighted-16,best_of_n-4,beam-4")
    tasks = list_tasks(problems, ways, [], alone=False)
    assert [str(way) for _, way in tasks] == ["samples-16", "greedy", "beam-4"] * 2
    alone = list_tasks(problems, ways, [], alone=True)
    assert [way for _, way in alone] == [*ways, *ways]


def test_what_needs_scores_is_refused_without_a_verifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--problems", str(tmp_path / "no.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    with pytest.raises(SystemExit, match="1"):
        main(["run", *files, "--pair", "smollm2-135m", "--ways", "greedy,weighted-4"])
    assert "smollm2-135m has no verifier for weighted votes" in capsys.readouterr().err
    alone = replace(SAMPLES, pair={**PAIR, "verifier": None})
    page = "\n".join(write_tables([alone], ()))
    assert ("| vote-4 |" in page, "| weighted-4 |" in page) == (True, False)


def test_what_is_there_is_not_solved_again(tmp_path: Path) -> None:
    problems = order_problems([write_problems(tmp_path / "made.jsonl", 2)], [None])
    first, second = (at.digest for at in problems)
    kept = [replace(SAMPLES, problem=first), replace(RECORD, problem=first)]
    tasks = list_tasks(problems, parse_ways("greedy,vote-2,vote-4"), kept, alone=False)
    assert [(at.digest, str(way)) for at, way in tasks] == [
        (second, "samples-4"),
        (second, "greedy"),
    ]
    more = list_tasks(problems[:1], parse_ways("greedy,vote-8"), kept, alone=False)
    assert [str(way) for _, way in more] == ["samples-8"]
    timed = list_tasks(problems[:1], parse_ways("greedy"), kept, alone=True)
    assert [str(way) for _, way in timed] == ["greedy"]


def test_what_failed_is_solved_again_and_then_counts(tmp_path: Path) -> None:
    problems = order_problems([write_problems(tmp_path / "made.jsonl", 1)], [None])
    (digest,) = (at.digest for at in problems)
    good = [replace(SAMPLES, problem=digest), replace(RECORD, problem=digest, right=True)]
    failed = [replace(each, paths=(), right=False, error="the engine died") for each in good]
    ways = parse_ways("greedy,vote-4")
    assert len(list_tasks(problems, ways, failed, alone=False)) == 2
    path = tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in (*failed, *good)))
    records = read_records([path])
    assert records == good
    assert list_tasks(problems, ways, records, alone=False) == []
    more = replace(failed[0], way="samples-16")
    for some in ([*good, more], [more, *good]):
        assert list(find_samples(some).values()) == good[:1], "one that failed hides no other"


# ---------------------------------------------------------------- what is kept


def test_a_damaged_line_is_left_out_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs" / "made.jsonl"
    kept = RecordFile(path, PAIR)
    kept.append(RECORD)
    kept.append(SAMPLES)
    kept.close()
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], b'{"way": 3}', lines[1], lines[0][:40]]))
    again = RecordFile(path, PAIR)
    again.append(replace(RECORD, way="beam-4"))
    again.close()
    said = capsys.readouterr().err
    assert [f"line {number} is damaged" in said for number in (1, 2, 3, 4)] == [
        *(False, True, False, True)
    ]
    assert read_records([path]) == [RECORD, SAMPLES, replace(RECORD, way="beam-4")]


@pytest.mark.parametrize("change", [{"models": "xyz"}, {"name": "other"}, {"seed": 1}])
def test_two_pairs_do_not_mix(tmp_path: Path, change: dict[str, Any]) -> None:
    path, other = tmp_path / "made.jsonl", {**PAIR, **change}
    kept = RecordFile(path, PAIR)
    kept.append(RECORD)
    kept.close()
    (name,) = change
    with pytest.raises(ConfigError, match=rf"this run has {name} "):
        RecordFile(path, other)
    with path.open("a") as file:
        file.write(json.dumps(asdict(replace(RECORD, pair=other, way="beam-4"))) + "\n")
    with pytest.raises(ConfigError, match=rf"line 2 has {name} .*, but .* has "):
        read_records([path])


# ---------------------------------------------------------------- what is counted


@pytest.mark.parametrize(
    ("name", "n", "answer"),
    [
        *(("vote", 4, "5"), ("weighted", 4, "4"), ("best_of_n", 4, "4")),
        *(("weighted", 2, "5"), ("best_of_n", 2, "5"), ("vote", 1, "5")),
    ],
)
def test_answers_are_chosen_among_the_first_samples(name: str, n: int, answer: str) -> None:
    assert choose_answer(PATHS[:n], name) == answer  # the best path of all has no answer
    found = choose_among(SAMPLES, name, n)
    assert found.right == (answer == "4")
    assert found.generator_tokens == 10 * n
    assert found.verifier_tokens == (0 if name == "vote" else 20 * n)


def test_no_answer_is_a_wrong_one() -> None:
    without = replace(SAMPLES, paths=(build_path(None, 0.5),))
    for name in ("vote", "weighted", "best_of_n"):
        assert choose_answer(without.paths, name) is None
        assert not choose_among(without, name, 1).right


def build_run(problem: int, way: str, right: bool, **more: Any) -> Record:
    return replace(RECORD, place=problem, problem=f"p{problem}", way=way, right=right, **more)


def read_rows(page: list[str]) -> dict[str, list[str]]:
    rows = [line.strip("|").split("|") for line in page if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_differences_are_of_the_same_problems() -> None:
    """Beam search solves all twelve problems that greedy decoding misses, of 40: the paired
    interval is that of twelve in 40, and does not hold 0. REBASE solves the same as greedy."""
    records = []
    for i in range(40):
        records.append(build_run(i, "greedy", i >= 12, tree_tokens=100))
        records.append(build_run(i, "beam-4", True, tree_tokens=400, wasted_tokens=20))
        records.append(build_run(i, "rebase-4", i >= 12, verifier_tokens=1000))
    records.append(build_run(40, "greedy", True))  # no other way has solved it
    records += [build_run(41, way, True) for way in ("greedy", "beam-4", "rebase-4")]
    records.append(build_run(0, "beam-4", True, alone=True, seconds=2.0))
    records.append(build_run(1, "beam-4", True, alone=True, seconds=4.0))
    page = list(write_tables(records, ()))
    rows = read_rows(page)
    assert "## Rehearsal: made, 40 problems" in page
    assert any("Of 42 problems that were begun, the first 40 are" in line for line in page)
    assert list(rows) == ["way", "greedy", "beam-4", "rebase-4"]
    assert rows["greedy"][0].startswith("70.0 % (")
    assert rows["beam-4"][0] == "100.0 % (100.0 to 100.0)"
    gain, low, high = rows["beam-4"][1].replace("(", "").replace(")", "").replace("to ", "").split()
    assert (gain, float(low) > 10, float(high) < 50) == ("+30.0", True, True)
    assert rows["rebase-4"][1] == "+0.0 (+0.0 to +0.0)"
    assert rows["beam-4"][3:] == ["420", "0", "3.0 of 2"]
    assert rows["rebase-4"][3:] == ["0", "1,000", ""]


def test_a_table_of_enough_problems_is_no_rehearsal() -> None:
    records = [build_run(i, "greedy", True) for i in range(200)]
    assert "## made, 200 problems" in list(write_tables(records, ()))
    tests = [replace(record, file="gsm8k_test") for record in records]
    assert "## gsm8k_test, 200 problems" in list(write_tables(tests, ()))
    assert "## Rehearsal: gsm8k_test, 199 problems" in list(write_tables(tests[:-1], ()))
    assert "## Rehearsal: gsm8k_test, 0 problems" in list(write_tables(tests[1:], ()))


def test_votes_are_compared_with_the_vote_of_as_many() -> None:
    samples = [replace(SAMPLES, place=i, problem=f"p{i}") for i in range(3)]
    rows = read_rows(list(write_tables(samples, parse_ways("vote-4,weighted-4,best_of_n-2"))))
    assert rows["weighted-4"][2] == "+100.0 (+100.0 to +100.0)"
    assert rows["vote-4"][1:3] == rows["best_of_n-2"][1:3] == ["", ""]


def test_a_failed_run_counts_as_wrong() -> None:
    records = [build_run(0, "greedy", True), build_run(1, "greedy", False, error="too long")]
    records += [replace(SAMPLES, place=i, problem=f"p{i}") for i in range(2)]
    records[-1] = replace(records[-1], paths=(), error="too long")
    page = list(write_tables(records, parse_ways("greedy,best_of_n-4")))
    assert "## Rehearsal: made, 2 problems" in page
    assert any("2 runs failed" in line for line in page)
    assert [row[0][:6] for row in read_rows(page).values()][1:] == ["50.0 %", "50.0 %"]
    assert list(write_tables([], ())) == ["There are no records."]


def test_votes_of_recorded_answers() -> None:
    """The vote of all four is right in the first problem, where one has no answer, and wrong in the
    second."""
    votes = [
        make_vote({"answer": "4", "texts": texts, "lens": [10, 10, 10, 10]}, name)
        for name, texts in {
            "a": ["\\boxed{4}", "\\boxed{4}", "\\boxed{4}", "no answer"],
            "b": ["\\boxed{5}", "\\boxed{5.0}", "\\boxed{5}", "\\boxed{4}"],
        }.items()
    ]
    rows = read_rows(list(write_votes(votes)))
    assert list(rows) == ["answers", "1", "2", "4"]
    assert rows["4"][0].startswith("50.0 % (0.0 to 100.0")
    assert [rows[n][2] for n in ("1", "2", "4")] == ["10", "20", "40"]
    assert rows["1"][1] == ""

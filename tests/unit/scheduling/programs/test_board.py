"""The order of programs: kinds, gangs, policies, clients, and the bound on the wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.lengths.tail import compute_figures
from flashedge.scheduling.programs.board import ProgramBoard, Rules
from flashedge.scheduling.programs.policies import (
    POLICIES,
    FirstCome,
    ShortestExpected,
    TailInflated,
)
from flashedge.scheduling.programs.program import Kind, Program
from flashedge.scheduling.programs.work import Work, estimate_work
from flashedge.types import POLICY_NAMES

BATCH = 8


def make(key: str, *, size: float | None = None, **fields: Any) -> Program:
    """size: the median of its output, which hardly varies. None: not predicted."""
    lengths = None if size is None else make_lengths(size)
    return Program(
        **{"key": key, "arrived_s": 0.0, "max_tokens": 4096, "lengths": lengths, **fields}
    )


def make_lengths(median: float) -> LogT:
    from math import log

    return LogT(mu=log(median), sigma=0.05)


class Board(ProgramBoard):
    """A board of programs that have one member each."""

    def put(self, program: Program) -> None:
        self.add(program, estimate_work(program))

    def change(self, key: str, **changes: Any) -> None:
        before = self.get(key)
        assert before is not None
        assert self.update(key, estimate_work(replace(before, **changes)), **changes)


def place(rules: Rules, *programs: Program, now_s: float = 1.0) -> str:
    board = Board(rules)
    for program in programs:
        board.put(program)
    return "".join(board.order(now_s, BATCH))


PLAIN = Rules(policy=FirstCome(), is_gang=False, is_fair=False, ranks_kinds=False)
SHORTEST = replace(PLAIN, policy=ShortestExpected())


def test_the_names_of_the_policies_are_those_of_the_setting() -> None:
    assert set(POLICIES) == set(POLICY_NAMES)


def test_first_come_goes_by_arrival_and_then_by_key() -> None:
    late, b, a = make("c", arrived_s=0.5), make("b"), make("a")
    assert place(PLAIN, late, b, a) == "abc"


def test_the_least_work_goes_first_and_an_unknown_program_last() -> None:
    programs = make("a", size=400), make("b", size=100), make("c")
    assert place(SHORTEST, *programs) == "bac"


def test_work_counts_all_outputs() -> None:
    one, many = make("a", size=300), make("b", size=100, outputs=8)
    assert place(SHORTEST, one, many) == "ab"


def test_progress_shortens_what_is_left() -> None:
    half_done = make("a", size=100, outputs=8, drawn_tokens=500)
    small = make("b", size=100, outputs=4)
    assert place(SHORTEST, small, half_done) == "ab"


def test_chats_go_before_searches_and_both_before_batch_work() -> None:
    rules = replace(SHORTEST, ranks_kinds=True)
    batch = make("a", size=10, kind=Kind.BATCH)
    chat = make("b", size=1000, kind=Kind.CHAT)
    search = make("c", size=500, kind=Kind.SEARCH)
    assert place(rules, batch, chat, search) == "bca"
    assert place(SHORTEST, batch, chat, search) == "acb", "without the rule"


def test_batch_work_goes_by_arrival_whatever_its_size() -> None:
    """Its results come in the order of the file."""
    rules = replace(SHORTEST, ranks_kinds=True)
    long = make("a", size=900, kind=Kind.BATCH)
    short = make("b", size=10, kind=Kind.BATCH, arrived_s=0.1)
    assert place(rules, short, long) == "ab"
    assert place(SHORTEST, short, long) == "ba", "without kinds it is work like any other"


def test_a_gang_that_has_started_goes_first() -> None:
    begun = make("b", size=900, started_s=0.5)
    short = make("a", size=10)
    assert place(replace(SHORTEST, is_gang=True), short, begun) == "ba"
    assert place(SHORTEST, short, begun) == "ab", "without the rule"


def test_clients_take_turns_by_what_they_were_served() -> None:
    greedy = [make(key, size=100, client="agent") for key in "abcd"]
    person = make("z", size=100, client="person", arrived_s=0.9)
    fair = replace(SHORTEST, is_fair=True)
    assert place(fair, *greedy, person) == "azbcd"
    assert place(SHORTEST, *greedy, person) == "abcdz", "without the rule"


def test_served_tokens_count_against_a_client() -> None:
    board = Board(replace(SHORTEST, is_fair=True))
    for program in (
        make("a", size=100, client="agent"),
        make("b", size=100, client="agent"),
        make("z", size=500, client="person"),
    ):
        board.put(program)
    board.change("a", drawn_tokens=90)
    assert board.order(1.0, BATCH)[0] == "z"


def test_a_client_that_returns_has_saved_nothing_up() -> None:
    """It was served little before its pause. It does not go first until it has caught up."""
    board = Board(replace(SHORTEST, is_fair=True))
    board.put(make("old", size=10, client="late"))
    board.put(make("a", size=100, client="agent"))
    board.remove("old")
    board.change("a", drawn_tokens=5000)
    board.put(make("z", size=900, client="late"))
    board.put(make("b", size=10, client="agent"))
    assert board.order(1.0, BATCH)[0] in "ab", "both clients begin at the same count"


def test_a_client_that_returns_keeps_its_count() -> None:
    board = Board(replace(SHORTEST, is_fair=True))
    board.put(make("a", size=100, client="agent"))
    board.put(make("old", size=10, client="late"))
    board.change("old", drawn_tokens=5000)
    board.remove("old")
    board.put(make("y", size=1, client="late"))
    assert board.order(1.0, BATCH) == ("a", "y")


def test_the_longest_cached_prefix_goes_first() -> None:
    prefix = replace(PLAIN, policy=POLICIES["prefix"])
    assert place(prefix, make("a", shared_tokens=5), make("b", shared_tokens=9)) == "ba"


def test_what_takes_the_longest_for_its_size_goes_first_by_finish_time() -> None:
    fair = replace(PLAIN, policy=POLICIES["fair_finish"])
    small, large = make("small", size=10, arrived_s=0.0), make("large", size=1000, arrived_s=0.0)
    board = Board(fair)
    for program in (large, small):
        board.put(program)
    assert board.order(20.0, BATCH) == ("small", "large"), "the same wait is worse for a small one"


@pytest.mark.parametrize("policy", ["tie_01", "tie_05"])
def test_a_fixed_weight_of_the_tail_prefers_the_certain_program(policy: str) -> None:
    """Of two with the same expectation."""
    risky, sure = make("a", lengths=LogT(mu=5.0, sigma=0.6)), make("b", size=1.0)
    expected = compute_figures(LogT(mu=5.0, sigma=0.6), 4096).expected
    sure = replace(sure, lengths=make_lengths(expected))
    assert place(replace(PLAIN, policy=POLICIES[policy]), risky, sure) == "ba"


def test_a_random_order_is_that_of_the_keys_alone() -> None:
    random = replace(PLAIN, policy=POLICIES["random"])
    programs = [make(key, size=size) for key, size in zip("abcdefgh", range(1, 9), strict=True)]
    found = place(random, *programs)
    assert found == place(random, *reversed(programs))
    assert found != "abcdefgh"


def test_an_unknown_program_is_left_alone() -> None:
    board = Board(PLAIN)
    assert not board.update("gone", Work(expected=1.0, tail=1.0), drawn_tokens=3)
    board.remove("gone")
    board.put(make("a"))
    with pytest.raises(ValueError, match="'a' is on the board already"):
        board.put(make("a"))
    assert board.order(0.0, BATCH) == ("a",)


def test_pressure_prefers_the_certain_program() -> None:
    """One has the lower expectation, the other the lighter tail (arXiv 2604.00499 §4)."""
    risky = make("a", lengths=LogT(mu=5.0, sigma=0.6))
    sure = make("b", lengths=LogT(mu=5.5, sigma=0.1))
    crowded = replace(PLAIN, policy=TailInflated())
    assert place(SHORTEST, risky, sure) == "ab"
    others = [make(f"z{number}") for number in range(BATCH)]
    assert place(crowded, risky, sure, *others).startswith("ba")


def test_a_prediction_that_arrives_later_counts() -> None:
    board = Board(SHORTEST)
    board.put(make("a"))
    board.put(make("b", size=300))
    assert board.order(1.0, BATCH) == ("b", "a")
    board.change("a", lengths=make_lengths(20))
    assert board.order(1.0, BATCH) == ("a", "b")


# ---------------------------------------------------------------- nobody starves

SOME_PROGRAM = st.builds(
    lambda arrived_s, size, kind, client, outputs: {
        "arrived_s": arrived_s,
        "size": size,
        "kind": kind,
        "client": client,
        "outputs": outputs,
    },
    st.floats(0, 100),
    st.one_of(st.none(), st.floats(1, 4000)),
    st.sampled_from(Kind),
    st.sampled_from(("agent", "person", "")),
    st.integers(1, 64),
)


@given(
    st.lists(SOME_PROGRAM, min_size=1, max_size=12),
    st.sampled_from(sorted(POLICIES)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_what_has_waited_long_enough_is_passed_by_no_later_program(
    found: list[dict[str, Any]], policy: str, is_gang: bool, is_fair: bool, ranks_kinds: bool
) -> None:
    """The bound: once a program got nothing for `escalate_after_s`, only those that arrived before
    it go before it, whatever the policy."""
    rules = Rules(
        policy=POLICIES[policy],
        is_gang=is_gang,
        is_fair=is_fair,
        ranks_kinds=ranks_kinds,
        escalate_after_s=30.0,
    )
    board = Board(rules)
    for number, fields in enumerate(found):
        board.put(make(f"p{number}", **fields))
    order = board.order(100.0, BATCH)
    assert sorted(order) == sorted(f"p{number}" for number in range(len(found))), "none is lost"
    for at, key in enumerate(order):
        program = board.get(key)
        assert program is not None
        if 100.0 - program.waits_since_s < 30.0:
            continue
        before = [board.get(other) for other in order[:at]]
        assert all(p is not None and p.arrived_s <= program.arrived_s for p in before)


def test_work_that_goes_on_is_not_what_waits() -> None:
    """However long batch work runs, a chat that arrives goes first, until the work got nothing for
    too long: then it keeps its place until it is over."""
    board = Board(Rules(policy=POLICIES["shortest"], escalate_after_s=30.0))
    board.put(make("batch", kind=Kind.BATCH, arrived_s=0.0))
    board.change("batch", started_s=1.0, served_s=99.0)
    board.put(make("chat", kind=Kind.CHAT, arrived_s=100.0))
    assert board.order(100.0, BATCH) == ("chat", "batch")
    board.change("chat", served_s=128.0)
    assert board.order(129.0, BATCH) == ("batch", "chat")
    board.change("batch", served_s=129.0)
    assert board.order(130.0, BATCH) == ("batch", "chat")
    board.remove("batch")
    board.put(make("batch", kind=Kind.BATCH, arrived_s=131.0))
    assert board.order(132.0, BATCH) == ("chat", "batch")


@given(st.lists(SOME_PROGRAM, min_size=1, max_size=8), st.sampled_from(sorted(POLICIES)))
def test_the_order_depends_on_the_programs_alone(found: list[dict[str, Any]], policy: str) -> None:
    """Not on the order in which the board was told of them, as long as clients are one."""
    rules = Rules(policy=POLICIES[policy])
    programs = [make(f"p{i}", **{**fields, "client": ""}) for i, fields in enumerate(found)]
    forward, backward = Board(rules), Board(rules)
    for program in programs:
        forward.put(program)
    for program in reversed(programs):
        backward.put(program)
    assert forward.order(100.0, BATCH) == backward.order(100.0, BATCH)

"""Active programs: what their members make of them, and their order: kinds, gangs, policies,
clients, and the bound on the wait."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.lengths.distribution import LengthDistribution, LogT
from flashedge.scheduling.programs import policies
from flashedge.scheduling.programs.active import RETURNS_S, ActivePrograms, Rules
from flashedge.scheduling.programs.policies import POLICIES, Decay, FirstCome, LeastWork
from flashedge.scheduling.programs.program import Kind, Member
from flashedge.types import POLICY_NAMES

BATCH = 8

Put = Callable[[ActivePrograms], None]
"""Adds a program of one member to the active ones. The member's id is the program's key."""


def make(
    key: str,
    *,
    size: float | None = None,
    arrived_s: float = 0.0,
    client: str = "",
    started: bool = False,
    **fields: Any,
) -> Put:
    """size: the median of its output, which hardly varies. None: not predicted."""

    def put(active: ActivePrograms) -> None:
        lengths = None if size is None else make_lengths(size)
        member = Member(**{"max_tokens": 4096, "lengths": lengths, **fields})
        active.join(key, member, key, client, arrived_s)
        if started:
            active.note_start(key, arrived_s)

    return put


def make_lengths(median: float) -> LengthDistribution:
    return LogT(mu=log(median), sigma=0.05)


class Active(ActivePrograms):
    def __init__(self, rules: Rules, *programs: Put) -> None:
        super().__init__(rules)
        self.put(*programs)

    def put(self, *programs: Put) -> None:
        for put in programs:
            put(self)

    def place(self, now_s: float = 1.0) -> str:
        return "".join(program.key for program in self.order(now_s, BATCH))


GANG = Rules(policy=FirstCome(), escalate_after_s=60.0)
PLAIN = replace(GANG, is_gang=False, is_fair=False, ranks_kinds=False)
SHORTEST = replace(PLAIN, policy=LeastWork())
FAIR = replace(SHORTEST, is_fair=True)


def test_the_names_of_the_policies_are_those_of_the_setting() -> None:
    assert set(POLICIES) == set(POLICY_NAMES)


GREEDY = [make(key, size=100, client="agent") for key in "abcd"]
PERSON = make("z", size=100, client="person", arrived_s=0.9)
SIZES = {Kind.BATCH: 10, Kind.CHAT: 1000, Kind.SEARCH: 500}
KINDS = [make(key, size=SIZES[kind], kind=kind) for key, kind in zip("abc", SIZES, strict=True)]
BEGUN = [make("a", size=10), make("b", size=900, started=True)]
LATE = make("b", size=10, kind=Kind.BATCH, arrived_s=0.1)
BATCH_WORK = [make("a", size=900, kind=Kind.BATCH), LATE]
LATE_CLIENT = make("old", size=10, client="late")
HALF_DRAWN = make("a", size=100, outputs=8, drawn_tokens=500)


@pytest.mark.parametrize(
    ("rules", "programs", "expected"),
    [
        (PLAIN, [make("c", arrived_s=0.5), make("b"), make("a")], "abc"),
        (SHORTEST, [make("a", size=400), make("b", size=100), make("c")], "bac"),
        (SHORTEST, [make("a", size=300), make("b", size=100, outputs=8)], "ab"),
        (SHORTEST, [make("b", size=100, outputs=4), HALF_DRAWN], "ab"),
        (replace(SHORTEST, ranks_kinds=True), KINDS, "bca"),
        (SHORTEST, KINDS, "acb"),
        (replace(SHORTEST, ranks_kinds=True), BATCH_WORK, "ab"),
        (SHORTEST, BATCH_WORK, "ba"),
        (replace(SHORTEST, is_gang=True), BEGUN, "ba"),
        (SHORTEST, BEGUN, "ab"),
        (FAIR, [*GREEDY, PERSON], "azbcd"),
        (SHORTEST, [*GREEDY, PERSON], "abcdz"),
    ],
)
def test_the_order_follows_the_rules(rules: Rules, programs: list[Put], expected: str) -> None:
    assert Active(rules, *programs).place() == expected


def test_served_tokens_count_against_a_client() -> None:
    active = Active(FAIR, *GREEDY, make("z", size=500, client="person"))
    active.note_tokens("a", 90, 0.5)
    assert active.place()[0] == "z"


def test_a_client_that_returns_has_saved_nothing_up() -> None:
    """It was served little before its pause. It does not go first until it has caught up."""
    active = Active(FAIR, LATE_CLIENT, make("a", size=100, client="agent"))
    active.leave("old", 0.1)
    active.note_tokens("a", 5000, 0.2)
    active.put(make("z", size=900, client="late"), make("b", size=10, client="agent"))
    assert active.place()[0] in "ab", "both clients begin at the same count"


def test_a_client_that_returns_keeps_its_count() -> None:
    active = Active(FAIR, make("a", size=100, client="agent"), LATE_CLIENT)
    active.note_tokens("old", 5000, 0.1)
    active.leave("old", 0.2)
    active.put(make("y", size=1, client="late"))
    assert active.place() == "ay"


def test_the_news_of_a_member_that_is_over_change_nothing() -> None:
    active = Active(PLAIN)
    active.leave("gone", 0.0)
    active.note_tokens("gone", 3, 0.0)
    active.change("gone", progress=1.0)
    assert active.note_start("gone", 0.0) is None
    assert (active.place(), len(active)) == ("", 0)


def test_pressure_prefers_the_certain_program() -> None:
    """One has the lower expectation, the other the lighter tail (arXiv 2604.00499 §4)."""
    both = make("a", lengths=LogT(mu=5.0, sigma=0.6)), make("b", lengths=LogT(mu=5.5, sigma=0.1))
    assert Active(SHORTEST, *both).place() == "ab"
    crowded = replace(PLAIN, policy=LeastWork(tail_weight=None))
    others = [make(f"z{number}") for number in range(BATCH)]
    assert Active(crowded, *both, *others).place().startswith("ba")


SEARCH = {"outputs": 16, "width": 11, "max_tokens": 400, "lengths": make_lengths(500)}
CHAT = {"kind": Kind.CHAT, "max_tokens": 64, "lengths": make_lengths(10)}


def test_a_program_is_what_its_open_members_do_together() -> None:
    active = ActivePrograms(PLAIN)
    active.join("search", Member(**SEARCH), "job", "", 5.0)
    program = active.get("job")
    assert program is active.find_program("search")
    alone = program.work
    assert alone.expected == pytest.approx(16 * 400, rel=0.05)  # paths of 500 tokens, cut at 400
    assert program.predict_output()[0] == 400
    active.join("chat", Member(**CHAT), "job", "", 6.0)
    assert (len(active), program.arrived_s, program.kind) == (1, 5.0, Kind.CHAT)
    assert program.work.expected == pytest.approx(alone.expected + 10, rel=0.01)
    assert program.predict_output()[0] == pytest.approx(10, rel=0.05), "predicted last"
    active.note_tokens("search", 3000, 7.0)
    active.leave("search", 8.0)
    active.leave("search", 8.0)
    assert (program.kind, program.served_s) == (Kind.CHAT, 7.0)
    assert program.work == Member(**CHAT).work
    active.leave("chat", 9.0)
    assert (len(active), active.find_member("chat")) == (0, None)


def test_the_most_urgent_member_says_what_a_program_is_for() -> None:
    active = ActivePrograms(PLAIN)
    for name, kind in (("a", Kind.BATCH), ("b", Kind.CHAT), ("c", Kind.SEARCH)):
        active.join(name, Member(kind=kind, max_tokens=9), "job", "", 0.0)
    program = active.get("job")
    assert program.kind is Kind.CHAT
    active.leave("b", 1.0)
    assert program.kind is Kind.SEARCH


@pytest.mark.parametrize(("pause_s", "resumes"), [(RETURNS_S, True), (RETURNS_S + 1, False)])
def test_a_program_that_comes_back_soon_is_under_way(pause_s: float, resumes: bool) -> None:
    active = Active(PLAIN, make("a", started=True))
    active.leave("a", 1.0)
    active.put(make("a", arrived_s=1.0 + pause_s))
    program = active.get("a")
    assert (program.is_under_way, program.started_s) == (resumes, None)


SOME_PROGRAM = st.fixed_dictionaries(
    {
        "arrived_s": st.floats(0, 100),
        "size": st.none() | st.floats(1, 4000),
        "kind": st.sampled_from(Kind),
        "client": st.sampled_from(("agent", "person", "")),
        "outputs": st.integers(1, 64),
    }
)
SOME_RULES = st.builds(
    Rules,
    policy=st.sampled_from(sorted(POLICIES)).map(POLICIES.__getitem__),
    is_gang=st.booleans(),
    is_fair=st.booleans(),
    ranks_kinds=st.booleans(),
    escalate_after_s=st.just(30.0),
)


@given(st.lists(SOME_PROGRAM, min_size=1, max_size=12), SOME_RULES)
def test_what_has_waited_long_enough_is_passed_by_no_later_program(
    found: list[dict[str, Any]], rules: Rules
) -> None:
    """The bound: once a program got nothing for `escalate_after_s`, only those that arrived before
    it go before it, whatever the policy."""
    active = Active(rules, *(make(f"p{number}", **fields) for number, fields in enumerate(found)))
    order = active.order(100.0, BATCH)
    assert sorted(p.key for p in order) == sorted(f"p{i}" for i in range(len(found)))
    for at, program in enumerate(order):
        if 100.0 - program.waits_since_s >= 30.0:
            assert all(before.arrived_s <= program.arrived_s for before in order[:at])


def test_work_that_goes_on_is_not_what_waits() -> None:
    """However long batch work runs, a chat that arrives goes first, until the work got nothing for
    too long: then it keeps its place until it is over."""
    rules = Rules(policy=POLICIES["shortest"], escalate_after_s=30.0)
    active = Active(rules, make("work ", kind=Kind.BATCH, started=True))
    active.note_tokens("work ", 0, 99.0)
    active.put(make("chat ", kind=Kind.CHAT, arrived_s=100.0))
    assert active.place(100.0) == "chat work "
    active.note_tokens("chat ", 0, 128.0)
    assert active.place(129.0) == "work chat "
    active.note_tokens("work ", 0, 129.0)
    assert active.place(130.0) == "work chat "
    active.leave("work ", 130.0)
    active.put(make("work ", kind=Kind.BATCH, arrived_s=131.0))
    assert active.place(132.0) == "chat work "


@given(st.lists(SOME_PROGRAM, min_size=1, max_size=8), st.sampled_from(sorted(POLICIES)))
def test_the_order_depends_on_the_programs_alone(found: list[dict[str, Any]], policy: str) -> None:
    """Not on the order in which the board was told of them, as long as clients are one."""
    rules = replace(GANG, policy=POLICIES[policy])
    programs = [make(f"p{i}", **{**fields, "client": ""}) for i, fields in enumerate(found)]
    assert Active(rules, *programs).place() == Active(rules, *reversed(programs)).place()


def test_the_risk_weight_follows_the_queue() -> None:
    weights = [policies.compute_risk_weight(waiting, 16) for waiting in (0, 1, 2, 4, 8, 900)]
    assert weights == [0.1, 0.1, 0.125, 0.25, 0.5, 0.5]
    with pytest.raises(ValueError, match="at least 1"):
        policies.compute_risk_weight(3, 0)


def test_waiting_sequences_count_not_waiting_programs() -> None:
    """Eight waiting searches of 16 paths are as many sequences as a batch of 128 holds. So λ is
    0.5, and a narrow program goes before one that is a little shorter but has a long tail. Without
    the searches λ is 0.1, and the shorter one goes first."""
    rules = Rules(policy=POLICIES["tie"], is_gang=False, escalate_after_s=None)
    narrow = Member(max_tokens=4096, lengths=LogT(log(140), 0.01))
    wide = Member(max_tokens=4096, lengths=LogT(log(100), 0.3))
    for searches, first in ((0, "wide"), (8, "narrow")):
        active = Active(rules)
        active.join("wide", wide, "wide", "", 0.0)
        active.join("narrow", narrow, "narrow", "", 0.0)
        for number in range(searches):
            active.put(make(f"s{number}", outputs=16, size=400.0))
        assert active.order(0.0, 128)[0].key == first


@pytest.mark.parametrize(
    ("factor", "interval_s"), [(0, 1), (1.1, 1), (-0.5, 1), (0.5, 0), (0.5, -1), (np.nan, 1)]
)
def test_an_impossible_decay_is_refused(factor: float, interval_s: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Decay(factor=factor, interval_s=interval_s)


def score(policy: LeastWork, expected: list[float], tail: list[float], waited_s: Any) -> Any:
    told = {"expected": np.array(expected), "tail": np.array(tail), "waited_s": np.array(waited_s)}
    return policy.score(policies.Queued(**told, waiting=0, max_batch=1))


def test_scores_are_the_inflated_expectation_less_the_decay() -> None:
    """A clock that is behind does not raise a score."""
    policy = LeastWork(tail_weight=0.2, decay=Decay(factor=0.5, interval_s=10))
    expected, tail = [100.0, 200.0, 300.0, 50.0, 100.0], [400.0, 300.0, 310.0, 60.0, 100.0]
    scores = score(policy, expected, tail, [0.0, 9.99, 10.0, 25.0, -70.0])
    assert scores.tolist() == pytest.approx([180.0, 260.0, 362.0 / 2, 62.0 / 4, 120.0])

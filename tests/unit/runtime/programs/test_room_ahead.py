"""Which groups may be drawn ahead, beside the programs that run."""

from __future__ import annotations

from dataclasses import replace

from flashedge.runtime.programs.room_ahead import GroupAhead, RoomAhead
from flashedge.scheduling.programs.admission import Capacity
from flashedge.scheduling.programs.program import Program

CAPACITY = Capacity(
    kv_tokens=10_000, max_running=8, useful_sequences=64, step_s=lambda batch: 1.0 + 0.001 * batch
)
SEARCH = Program(key="a", arrived_s=0.0, started_s=0.0, outputs=16, width=11, max_tokens=400)
"""Unpredicted, so a path counts a quarter of its limit: 100 tokens."""


class Rig:
    def __init__(self, *programs: Program, capacity: Capacity | None = CAPACITY) -> None:
        self.programs = list(programs)
        self.dropped: list[str] = []
        self.room = RoomAhead(lambda: self.programs)
        self.room.set_capacity(capacity)

    def reserve(self, key: str = "a", paths: int = 11, now: int = 5) -> GroupAhead | None:
        """The group, if it gets room."""

        def drop() -> None:
            self.dropped.append(key)

        group = GroupAhead(program=key, width=11, now=now, paths=paths, drop=drop)
        return group if self.room.reserve(group) else None

    def start(self, key: str, outputs: int = 16) -> None:
        self.programs.append(replace(SEARCH, key=key, outputs=outputs, width=None))
        self.room.make_room()


def search(key: str, **fields: object) -> Program:
    return replace(SEARCH, key=key, **fields)  # type: ignore[arg-type]


def test_a_search_alone_may_draw_ahead() -> None:
    assert Rig(SEARCH).reserve() is not None


def test_nothing_is_drawn_ahead_where_the_engines_are_not_known() -> None:
    assert Rig(SEARCH, capacity=None).reserve() is None
    assert Rig(SEARCH, capacity=replace(CAPACITY, step_s=None)).reserve() is None
    assert Rig(SEARCH, capacity=replace(CAPACITY, is_assumed=True)).reserve() is None
    assert Rig().reserve() is None, "nor for a program that is not there"


def test_a_full_batch_has_no_room() -> None:
    others = [search(str(i), width=16) for i in range(4)]
    assert Rig(SEARCH, *others).reserve() is None
    assert Rig(SEARCH, *others[:3]).reserve() is not None


def test_programs_that_wait_take_no_room() -> None:
    others = [search(str(i), width=16, started_s=None) for i in range(4)]
    assert Rig(SEARCH, *others).reserve() is not None


def test_groups_take_room_from_each_other_until_they_are_released() -> None:
    capacity = replace(CAPACITY, useful_sequences=4 * 11 + 5)
    rig = Rig(*(search(key) for key in "abcd"), capacity=capacity)
    first = rig.reserve("a")
    assert first is not None
    assert rig.reserve("b") is None, "the first one takes five sequences more than admitted"
    rig.room.release(first)
    rig.room.release(first)
    assert rig.reserve("b") is not None


def test_the_kv_bounds_what_is_drawn_ahead() -> None:
    needed = (5 + 11) * 100
    assert Rig(SEARCH, capacity=replace(CAPACITY, kv_tokens=needed)).reserve() is not None
    assert Rig(SEARCH, capacity=replace(CAPACITY, kv_tokens=needed - 1)).reserve() is None


def test_a_run_that_starts_gets_the_kv_of_the_latest_groups() -> None:
    rig = Rig(SEARCH, search("b"), capacity=replace(CAPACITY, kv_tokens=2 * 1600 + 500))
    assert rig.reserve("a") is not None
    assert rig.reserve("b") is not None
    rig.start("small", outputs=5)
    assert rig.dropped == []
    rig.start("c", outputs=5)
    assert rig.dropped == ["b"]
    rig.start("d", outputs=5)
    assert rig.dropped == ["b", "a"]
    rig.start("e")
    assert rig.dropped == ["b", "a"], "nothing is left to drop"


def test_a_request_that_arrives_gets_its_place_in_the_batch() -> None:
    rig = Rig(SEARCH, capacity=replace(CAPACITY, useful_sequences=16))
    assert rig.reserve() is not None
    rig.programs.append(search("chat", outputs=1, width=None))
    rig.room.make_room()
    assert rig.dropped == ["a"]


def test_runs_of_one_program_take_room_from_each_other() -> None:
    """Four runs with one key: each may draw 5 beyond the 11 for which it was admitted."""
    capacity = replace(CAPACITY, useful_sequences=4 * 11 + 2 * 5)
    rig = Rig(*[SEARCH] * 4, capacity=capacity)
    assert [rig.reserve() is not None for _ in range(4)] == [True, True, False, False]


def test_runs_of_a_program_that_wait_take_no_room() -> None:
    waiting = replace(SEARCH, started_s=None)
    rig = Rig(SEARCH, *[waiting] * 8, capacity=replace(CAPACITY, useful_sequences=16))
    assert rig.reserve() is not None


def test_runs_of_one_program_wait_for_each_others_waste() -> None:
    def slow(batch: int) -> float:
        return 1.0 + 0.02 * batch

    capacity = replace(CAPACITY, useful_sequences=512, step_s=slow)
    for runs, granted in ((1, True), (8, False)):
        rig = Rig(*[SEARCH] * runs, capacity=capacity)
        for _ in range(2):
            rig.room.continuations.note(went_on=False)
        assert (rig.reserve() is not None) is granted

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


class Rig:
    def __init__(self, *programs: Program, capacity: Capacity | None = CAPACITY) -> None:
        self.programs = list(programs)
        self.dropped: list[str] = []
        self.room = RoomAhead(lambda: self.programs)
        self.room.set_capacity(capacity)

    def ask(self, key: str = "a", paths: int = 11, now: int = 5) -> GroupAhead | None:
        """The group, if it is granted."""

        def drop() -> None:
            self.dropped.append(key)

        group = GroupAhead(program=key, now=now, paths=paths, drop=drop)
        return group if self.room.ask(group) else None

    def start(self, key: str, outputs: int = 16) -> None:
        self.programs.append(replace(SEARCH, key=key, outputs=outputs, width=None))
        self.room.make_room()


def test_a_search_alone_may_draw_ahead() -> None:
    assert Rig(SEARCH).ask() is not None


def test_nothing_is_granted_where_the_engines_are_not_known() -> None:
    assert Rig(SEARCH, capacity=None).ask() is None
    assert Rig(SEARCH, capacity=replace(CAPACITY, step_s=None)).ask() is None
    assert Rig().ask() is None, "nor to a program that is not there"


def test_a_full_batch_grants_nothing() -> None:
    others = [replace(SEARCH, key=str(i), width=16) for i in range(4)]
    assert Rig(SEARCH, *others).ask() is None
    assert Rig(SEARCH, *others[:3]).ask() is not None


def test_programs_that_wait_take_no_room() -> None:
    others = [replace(SEARCH, key=str(i), width=16, started_s=None) for i in range(4)]
    assert Rig(SEARCH, *others).ask() is not None


def test_groups_take_room_from_each_other_until_they_are_released() -> None:
    searches = [replace(SEARCH, key=key) for key in "abcd"]
    rig = Rig(*searches, capacity=replace(CAPACITY, useful_sequences=53))
    first = rig.ask("a")
    assert first is not None
    assert rig.ask("b") is None, "33 of the others, 5 more for the first group, 5 and 11 of its own"
    rig.room.release(first)
    rig.room.release(first)
    assert rig.ask("b") is not None


def test_the_kv_bounds_what_is_drawn_ahead() -> None:
    needed = (5 + 11) * 100  # a quarter of the limit for each unpredicted path
    assert Rig(SEARCH, capacity=replace(CAPACITY, kv_tokens=needed)).ask() is not None
    assert Rig(SEARCH, capacity=replace(CAPACITY, kv_tokens=needed - 1)).ask() is None


def test_a_program_that_starts_gets_the_room_of_the_latest_groups() -> None:
    rig = Rig(
        SEARCH, replace(SEARCH, key="b"), capacity=replace(CAPACITY, kv_tokens=2 * 1600 + 500)
    )
    assert rig.ask("a") is not None
    assert rig.ask("b") is not None
    rig.start("small", outputs=5)
    assert rig.dropped == []
    rig.start("c", outputs=5)
    assert rig.dropped == ["b"]
    rig.start("d", outputs=5)
    assert rig.dropped == ["b", "a"]
    rig.start("e")
    assert rig.dropped == ["b", "a"], "nothing is left to drop"

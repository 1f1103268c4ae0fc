"""A user's own reasoning program as a search: two functions, everything else is ours.

Write a class with the two methods of `ReasoningProgram` and name it in your package's metadata:

    [project.entry-points."flashedge.strategies"]
    my_way = "my_package:MyWay"

Then `flashedge solve --strategy my_way` finds it by that name. It is made anew for each run, with
the run's `options` as keyword arguments, and must be pure: all state is in the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flashedge.certainty.history import PROGRAM
from flashedge.errors import RequestError
from flashedge.search.level_state import LevelState, Shares
from flashedge.search.stepwise import Stepwise
from flashedge.search.tree import Tree
from flashedge.types import NodeId


class ReasoningProgram(Protocol):
    """Ref: arXiv 2412.20993 App. D.1 (`execute`, `update_certindex`; the progress is the number of
    finished paths, the state the tree). Departure: both are pure functions, called by the search,
    so that a program is driven, cut and replayed like any other algorithm."""

    def execute(self, tree: Tree, paths: Sequence[NodeId], width: int) -> Mapping[NodeId, int]:
        """Which of `paths` go on, with how many children each; {} ends the run.

        paths: at least one, scored, unfinished, different, best first. The numbers are at least 1
        and sum to `width` at most (the paths that may still be completed).
        """
        ...

    def update_certainindex(self, tree: Tree, finished: Sequence[NodeId]) -> float | None:
        """How sure the program is, in [0, 1], at a checkpoint; None: it can't tell. finished:
        the paths that ended; their answers (as representatives of clusters) are in the tree."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSearch(Stepwise):
    """Drives a program step by step. label: the name it was found by; `branching` is not used."""

    program: ReasoningProgram
    label: str

    @property
    def name(self) -> str:
        return self.label

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        """Raises RequestError when the program asks for what it may not."""
        asked = self.program.execute(state.tree, tuple(paths), width)
        strange = set(asked) - set(paths)
        wrong = [count for count in asked.values() if not isinstance(count, int) or count < 1]
        if strange or wrong or sum(asked.values()) > width:
            raise RequestError(
                f"strategy {self.label!r} asked for {dict(asked)} of paths {list(paths)}",
                hint=f"execute() must give those paths at least 1 child each, {width} at most",
                param="strategy",
            )
        return tuple((node, asked[node]) for node in paths if node in asked)

    def share(self, state: LevelState) -> int:
        return self.n - len(state.complete) - state.ended

    def note(self, state: LevelState) -> LevelState:
        """The program is never asked about the past: it would be told the whole tree."""
        return state

    def measures(self, state: LevelState) -> dict[str, float]:
        # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
        taken = Stepwise.measures(self, state)
        said = self.program.update_certainindex(state.tree, tuple(self.counted(state)))
        return taken if said is None else {**taken, PROGRAM: min(1.0, max(0.0, said))}

"""A user's own reasoning program as a search.

Write a class with the two methods of `ReasoningProgram` and register it in your package:

    [project.entry-points."flashedge.strategies"]
    my_way = "my_package:MyWay"

Then `flashedge solve --strategy my_way` finds it by that name. Each run creates a new object, with
the run's `options` as keyword arguments. The methods must be pure: all state is in the tree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flashedge.certainty.measures import PROGRAM
from flashedge.errors import RequestError
from flashedge.search.level import LevelState, Shares, Stepwise
from flashedge.search.tree import Tree
from flashedge.types import NodeId


class ReasoningProgram(Protocol):
    """Decides which paths continue, and how certain the run is. Ref: arXiv 2412.20993 App. D.1
    (`execute`, `update_certindex`; progress is the number of finished paths). Departure: both are
    pure functions, so that a program is stopped and replayed like any other strategy."""

    def execute(self, tree: Tree, paths: Sequence[NodeId], width: int) -> Mapping[NodeId, int]:
        """Choose the paths to continue, with their numbers of children. {} ends the run. paths: at
        least one, all scored, unfinished and different, best first. The numbers are at least 1 and
        sum to at most `width`, the paths that may still be completed."""
        ...

    def update_certainindex(self, tree: Tree, finished: Sequence[NodeId]) -> float | None:
        """The certainty at a checkpoint, in [0, 1]. None if the program can't tell. finished: the
        paths that ended. The tree has their answers, as representatives of clusters."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSearch(Stepwise):
    """Drives a program step by step. `branching` is not used."""

    program: ReasoningProgram
    name: str = field()  # without field() the property `Search.name` would be its default
    """The name under which the program is registered."""

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        """Raises RequestError when the program breaks the rules of `execute`."""
        chosen = self.program.execute(state.tree, tuple(paths), width)
        unknown = set(chosen) - set(paths)
        wrong = [count for count in chosen.values() if not isinstance(count, int) or count < 1]
        if unknown or wrong or sum(chosen.values()) > width:
            raise RequestError(
                f"strategy {self.name!r} asked for {dict(chosen)} of paths {list(paths)}",
                hint=f"execute() must give each path at least 1 child, and at most {width} in all",
                param="strategy",
            )
        return tuple((node, chosen[node]) for node in paths if node in chosen)

    def remember_checkpoint(self, state: LevelState) -> LevelState:
        """Remember nothing: asked later, the program would see the whole tree."""
        return state

    def measure(self, tree: Tree, paths: Sequence[NodeId]) -> dict[str, float]:
        # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
        values = Stepwise.measure(self, tree, paths)
        own = self.program.update_certainindex(tree, tuple(paths))
        return values if own is None else {**values, PROGRAM: min(1.0, max(0.0, own))}

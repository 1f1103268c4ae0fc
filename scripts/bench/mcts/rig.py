"""The bundled pair on real engines, and one MCTS run on it with what it left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Event
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.engines import build_engines
from flashedge.runtime.request.strategies import build_search, find_defaults
from flashedge.runtime.request.validation import Request
from flashedge.search.base import Command
from flashedge.search.mcts.rollouts import MctsState, Move
from flashedge.search.strategies.mcts import Mcts
from flashedge.types import Problem
from scripts.bench.real_pair import is_right, open_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One run."""

    outcome: Outcome
    state: MctsState
    """The search's last state."""
    events: tuple[Event, ...]
    right: bool
    seconds: float
    cancelled_tokens: int
    mean_in_flight: float
    """Rollouts in flight, averaged over the search's turns."""
    mean_expanding: float
    """Those of them that do not wait at a node of another one."""


class StateWatch(Mcts):
    """MCTS whose states are seen."""

    __slots__ = ("states",)
    states: list[MctsState]

    def run(self, state: MctsState, commands: Iterable[Command] = ()) -> Move:
        moved = Mcts.run(self, state, commands)
        self.states.append(moved[0])
        return moved

    @classmethod
    def of(cls, search: Mcts) -> StateWatch:
        watch = cls(**{field.name: getattr(search, field.name) for field in fields(search)})
        object.__setattr__(watch, "states", [])
        return watch


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    """Start the bundled pair, as the usual settings say."""
    async with open_pair() as (pair, grader):
        yield Bench(pair, grader)


def build_spec(row: Mapping[str, str], *, n: int, seed: int, **options: Any) -> Request:
    """One MCTS run on a row of a problem file."""
    return Request(
        problem=Problem.from_text(row["problem"]),
        pair="bundled",
        strategy="mcts",
        n=n,
        seed=seed,
        options=options,
        **find_defaults("mcts"),
    )


def count_duplicates(state: MctsState) -> int:
    """Rollouts whose path says the same as that of an earlier one."""
    texts = [state.tree.path_text(node).strip() for node in state.rollouts]
    return len(texts) - len(set(texts))


class Bench:
    """Runs searches on a pair."""

    def __init__(self, pair: VllmPair, grader: MathGrader) -> None:
        self.pair, self.grader = pair, grader

    async def run(self, row: Mapping[str, str], spec: Request) -> Finished:
        """row: of a problem file."""
        search = build_search(spec)
        assert isinstance(search, Mcts), "the bench runs MCTS only"
        watch = StateWatch.of(search)
        told: list[Event] = []
        prompt = self.pair.generator.codec.encode_chat(spec.problem.messages)
        engines = build_engines(Optimizations(), self.pair, grader=self.grader)
        driver = Driver(watch, spec, prompt, engines, told.append)
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await driver.run()
        seconds = loop.time() - began
        turns = {state.turn: state for state in watch.states}.values()
        return Finished(
            outcome=outcome,
            state=watch.states[-1],
            events=tuple(told),
            right=await is_right(self.grader, outcome.finish.answer, row["answer"]),
            seconds=seconds,
            cancelled_tokens=driver.cancelled_tokens,
            mean_in_flight=sum(len(state.flights) for state in turns) / len(turns),
            mean_expanding=sum(len(state.expanding) for state in turns) / len(turns),
        )

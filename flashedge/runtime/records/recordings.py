"""Runs at full compute as calibration keeps them: their checkpoints and the answer at each.

Made of a run's events and nothing else, so that a stored run is as good as one just made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from flashedge.certainty.history import Checkpoint, History
from flashedge.certainty.replay import Spent, Trace
from flashedge.events import CertaintyUpdated, Event, Probed, RunFinished, RunStarted
from flashedge.runtime.request.calibrations import settings_of
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.request.strategies import search_of
from flashedge.search.strategies.probed_cot import ProbedCot


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run. problem: its text; settings: see `calibrations.settings_of`; cap: the most progress;
    probe_tokens: (num_probes,) what each probe had cost when it was answered, all before it
    included; answer, tokens: of the run's own end."""

    run: str
    problem: str
    settings: Mapping[str, Any]
    cap: int
    checkpoints: History
    probe_tokens: tuple[int, ...]
    answer: str | None
    tokens: int

    @property
    def answers(self) -> frozenset[str]:
        """All that the run said or would have said."""
        said = {self.answer, *(r.answer for r in self.checkpoints)}
        return frozenset(a for a in said if a is not None)

    def trace(self, right: frozenset[str]) -> Trace:
        """For replay. right: those of `answers` that are."""

        def spent(answer: str | None, tokens: int, probes: int) -> Spent:
            overhead = self.probe_tokens[min(probes, len(self.probe_tokens)) - 1] if probes else 0
            return Spent(right=answer in right, tokens=tokens, overhead=overhead)

        probed = len(self.probe_tokens)
        return Trace(
            problem=self.problem,
            cap=self.cap,
            checkpoints=self.checkpoints,
            stops=tuple(
                spent(r.answer, r.tokens, min(r.progress, probed)) for r in self.checkpoints
            ),
            whole=spent(self.answer, self.tokens, probed),
        )


def recording_of(run: str, told: Iterable[Event]) -> Recording | None:
    """The recording of a finished run at full compute; None of any other.

    A run that a policy could have stopped, or that something cut, shows only a part of what a run
    can come to; so does one from before checkpoints carried their answers.
    """
    spec: RunSpec | None = None
    result: Mapping[str, Any] | None = None
    checkpoints: list[Checkpoint] = []
    probes: list[int] = []
    for event in told:
        match event:
            case RunStarted(config=config):
                spec = RunSpec.from_json(config)
            case CertaintyUpdated():
                checkpoints.append(
                    Checkpoint(
                        progress=event.knob,
                        tokens=event.tokens,
                        answers=event.answers,
                        measures=event.measures,
                        answer=event.answer,
                    )
                )
            case Probed(tokens=tokens):
                probes.append(tokens)
            case RunFinished(result=result):
                pass
            case _:
                pass
    if spec is None or result is None or spec.early_exit is not None or result.get("cut_by"):
        return None
    answer = result.get("answer")
    if answer is not None and checkpoints and all(r.answer is None for r in checkpoints):
        return None
    search = search_of(spec)
    return Recording(
        run=run,
        problem=spec.problem.messages[-1].content,
        settings=settings_of(spec),
        cap=search.cap(spec.limits) if isinstance(search, ProbedCot) else search.n,
        checkpoints=tuple(checkpoints),
        probe_tokens=tuple(accumulate(probes)),
        answer=answer,
        tokens=int(result["usage"]["tree_tokens"]),
    )

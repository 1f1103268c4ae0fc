"""Builds recordings for calibration. A recording is a run without early exit, with its checkpoints.

It is built from the run's events alone, so a stored run serves as well as a new one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from flashedge.certainty.calibration import Ending, RunTrace
from flashedge.certainty.measures import Checkpoint, History
from flashedge.events import CertaintyUpdated, Event, Probed, RunFinished, RunStarted
from flashedge.runtime.request.calibrations import collect_settings
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.strategies import build_search
from flashedge.search.strategies.probed_cot import ProbedCot


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One finished run without early exit."""

    run: str
    problem: str
    settings: Mapping[str, Any]
    """See `calibrations.collect_settings`."""
    cap: int
    """The progress at which the run ends anyway."""
    checkpoints: History
    probe_tokens: tuple[int, ...]
    """(num_probes,) running sums of the tokens of probes."""
    answer: str | None
    tokens: int
    """Tokens of the tree at the end."""

    @property
    def answers(self) -> frozenset[str]:
        """Every answer that the run gave, or would have given at a checkpoint."""
        given = {self.answer, *(c.answer for c in self.checkpoints)}
        return frozenset(a for a in given if a is not None)

    def build_trace(self, right: frozenset[str]) -> RunTrace:
        """Build what the replay of a policy needs. right: those of `answers` that are right."""

        def build(answer: str | None, tokens: int, probes: int) -> Ending:
            overhead = self.probe_tokens[probes - 1] if probes else 0
            return Ending(right=answer in right, tokens=tokens, overhead=overhead)

        probed = len(self.probe_tokens)
        return RunTrace(
            problem=self.problem,
            cap=self.cap,
            checkpoints=self.checkpoints,
            stops=tuple(
                build(c.answer, c.tokens, min(c.progress, probed)) for c in self.checkpoints
            ),
            whole=build(self.answer, self.tokens, probed),
        )


def build_recording(run: str, log: Iterable[Event]) -> Recording | None:
    """Build the recording of a run from its events. Returns None for a run that did not finish,
    that a policy could have stopped, that was cut, or that is so old that its checkpoints have no
    answers."""
    events = tuple(log)
    config = next((e.config for e in events if isinstance(e, RunStarted)), None)
    result = next((e.result for e in events if isinstance(e, RunFinished)), None)
    if config is None or result is None or result.get("cut_by"):
        return None
    request = Plan.from_json(config).request
    if request.early_exit is not None:
        return None
    checkpoints = tuple(
        Checkpoint(**{name: getattr(event, name) for name in Checkpoint.__dataclass_fields__})
        for event in events
        if isinstance(event, CertaintyUpdated)
    )
    answer = result.get("answer")
    if answer is not None and checkpoints and all(c.answer is None for c in checkpoints):
        return None
    search = build_search(request)
    return Recording(
        run=run,
        problem=request.problem.text,
        settings=collect_settings(request),
        cap=search.find_cap(request.limits) if isinstance(search, ProbedCot) else search.n,
        checkpoints=checkpoints,
        probe_tokens=tuple(accumulate(e.tokens for e in events if isinstance(e, Probed))),
        answer=answer,
        tokens=int(result["usage"]["tree_tokens"]),
    )

"""All that the dashboard shows, as one frozen value. Every function here is pure.

Runs are folds over their events (`run_state`); the daemon's listing and status are snapshots that
replace each other. A replay folds stored events by the same function, apart from the live runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from flashedge.tui import replay
from flashedge.tui.replay import Replay
from flashedge.tui.state import rates
from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.rates import Rate, Sample
from flashedge.tui.state.run import Numbered, RunState, fold, interrupted
from flashedge.tui.state.summary import DaemonLook, RunSummary

TREES_KEPT = 4  # one of 512 paths takes 2 to 3 MiB; the daemon tells an older one again


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """state: connecting, up or lost. lost: what the client said, and when it is tried again."""

    state: str = "connecting"
    error: str = ""
    retry_in_s: float = 0.0


def _no_trees() -> Mapping[str, RunState]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """chosen: the run whose tree is shown; trees: of the runs that are or were followed."""

    link: Link = field(default_factory=Link)
    look: DaemonLook | None = None
    runs: tuple[RunSummary, ...] = ()
    trees: Mapping[str, RunState] = field(default_factory=_no_trees)
    chosen: str | None = None
    samples: tuple[Sample, ...] = ()
    device: DeviceSample | None = None
    replay: Replay | None = None
    replayed: RunState | None = None

    @property
    def shown(self) -> RunState | None:
        """The run that the panels show: the replayed one, else the chosen one."""
        if self.replayed is not None:
            return self.replayed
        return self.trees.get(self.chosen) if self.chosen is not None else None

    @property
    def chosen_summary(self) -> RunSummary | None:
        return next((r for r in self.runs if r.id == self.chosen), None)

    @property
    def rates(self) -> tuple[Rate, ...]:
        return rates.rates(self.samples)


# ---------------------------------------------------------------- what the daemon said


def saw_events(state: Dashboard, run: str, items: Iterable[Numbered]) -> Dashboard:
    before = state.trees.get(run) or RunState(id=run)
    return _with_tree(state, fold(before, items))


def saw_interruption(state: Dashboard, run: str) -> Dashboard:
    """The run's log ends without a last event."""
    before = state.trees.get(run) or RunState(id=run)
    return _with_tree(state, interrupted(before))


def saw_daemon(state: Dashboard, look: DaemonLook, runs: Sequence[RunSummary]) -> Dashboard:
    """A snapshot; the first run that goes on is chosen while none is."""
    runs = sorted(runs, key=lambda r: (not r.live, r.status != "running"))
    chosen = state.chosen  # it may be newer than this look, or older than the listing goes back
    if chosen is None and runs:
        chosen = runs[0].id
    return replace(state, link=Link(state="up"), look=look, runs=tuple(runs), chosen=chosen)


def lost(state: Dashboard, error: str, retry_in_s: float) -> Dashboard:
    """The daemon can't be reached; what was seen stays."""
    return replace(state, link=Link(state="lost", error=error, retry_in_s=retry_in_s), look=None)


def saw_device(state: Dashboard, sample: DeviceSample) -> Dashboard:
    return replace(state, device=sample)


def choose(state: Dashboard, run: str) -> Dashboard:
    return replace(state, chosen=run)


def to_follow(state: Dashboard) -> tuple[str, ...]:
    """Runs whose events are wanted: those that go on, and the chosen one."""
    wanted = [r.id for r in state.runs if r.live]
    if state.chosen is not None and state.chosen not in wanted:
        wanted.append(state.chosen)
    return tuple(r for r in wanted if r not in state.trees or not state.trees[r].over)


def sampled(state: Dashboard, at_s: float) -> Dashboard:
    """Note how many tokens the runs have at `at_s`; in a replay, the replayed one."""
    live = {r.id for r in state.runs if r.live}
    shown = [t for t in state.trees.values() if t.id in live or not t.over]
    if state.replayed is not None:
        shown = [state.replayed]
    counts = MappingProxyType({t.id: (t.all_tokens, t.kept_tokens) for t in shown})
    return replace(state, samples=rates.sampled(state.samples, Sample(at_s=at_s, counts=counts)))


# ---------------------------------------------------------------- replay


def started_replay(state: Dashboard, run: str, items: Sequence[Numbered]) -> Dashboard:
    begun = replay.replay_of(run, items)
    return replace(state, replay=begun, replayed=RunState(id=run), samples=())


def advanced_replay(state: Dashboard, elapsed_s: float) -> Dashboard:
    """The replay after `elapsed_s` of the watcher's time; a no-op without one."""
    if state.replay is None or state.replayed is None or state.replay.over:
        return state
    moved, due = replay.advance(state.replay, elapsed_s)
    return replace(state, replay=moved, replayed=fold(state.replayed, due))


def faster_replay(state: Dashboard) -> Dashboard:
    return state if state.replay is None else replace(state, replay=replay.faster(state.replay))


def ended_replay(state: Dashboard) -> Dashboard:
    return replace(state, replay=None, replayed=None, samples=())


def _with_tree(state: Dashboard, run: RunState) -> Dashboard:
    """With the run's tree as the newest; the oldest that nobody looks at is let go."""
    trees = {k: v for k, v in state.trees.items() if k != run.id} | {run.id: run}
    spare = [k for k, v in trees.items() if v.over and k not in (state.chosen, run.id)]
    for old in spare[: max(len(trees) - TREES_KEPT, 0)]:
        del trees[old]
    return replace(state, trees=MappingProxyType(trees))

"""Everything that the dashboard shows, as one frozen value. Every function here is pure.

A run's tree is a fold over its events (`client.run_view`), live or in a replay. The daemon's
listing and status are snapshots.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

from flashedge.client.run_figures import find_answer
from flashedge.client.run_view import Numbered, RunView, fold, interrupt
from flashedge.events import RunFinished, StepCompleted
from flashedge.literal import show_in_line
from flashedge.tui.device import DeviceSample
from flashedge.tui.summary import DaemonStatus, RunRow
from flashedge.types import STRATEGIES

KEPT_S = 120.0
"""How long samples of the token counts are kept: with two a second, 240 cells of a sparkline."""
WINDOW_S = 3.0
"""A rate is the mean over this long. Chosen by hand: tokens are reported in bursts, which a tenth
would show; ten times as long hides where a level begins."""
_RECENT = 8
"""Samples from which the newest rate is computed. WINDOW_S spans seven, one every half second."""
SPEEDS = (1, 4, 16)
"""Speeds of a replay, as multiples of the run's own."""
_EVENT_S = 0.02
"""Seconds between two events of a replay if the run's duration is not known. Chosen by hand: 500
events take 10 s. At a tenth nobody could follow them, and ten times as long is tedious."""
_OTHER_WEIGHT = 1.0
"""An event without tokens takes as long as this many tokens, so that it is seen by itself."""
TREES_KEPT = 4
"""Trees kept in memory, each 2 to 3 MiB for 512 paths. The daemon can send events again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    at_s: float
    """By the dashboard's monotonic clock."""
    counts: Mapping[str, tuple[int, int]]
    """By run: (all tokens, tokens of nodes that are active or complete)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    at_s: float
    tokens_per_s: float
    goodput_per_s: float
    """Tokens per second in nodes that searches keep. They count once their level is decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostDaemon:
    error: str
    retry_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    items: tuple[Numbered, ...]
    offsets_s: tuple[float, ...]
    """When each item is due, in seconds of the run from its start."""
    view: RunView
    """The fold of the items that are due by `at_s`."""
    speed: int = SPEEDS[0]
    at_s: float = 0.0
    """How far the replay has come, in seconds of the run from its start."""

    @property
    def due(self) -> int:
        """The number of items that are due by `at_s`: the index of the next one."""
        return bisect_right(self.offsets_s, self.at_s)

    @property
    def over(self) -> bool:
        return self.due >= len(self.items)

    @property
    def total_s(self) -> float:
        return self.offsets_s[-1]

    def advance(self, elapsed_s: float) -> Replay:
        """Return the replay after `elapsed_s` of the watcher's time."""
        moved = replace(self, at_s=min(self.at_s + elapsed_s * self.speed, self.total_s))
        return replace(moved, view=fold(self.view, self.items[self.due : moved.due]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    daemon: DaemonStatus | None = None
    """The daemon's last status. None before the first one, and while the daemon is lost."""
    lost: LostDaemon | None = None
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    """Those that the daemon serves, including the user's own search programs."""
    runs: tuple[RunRow, ...] = ()
    """The newest runs of the last poll; those that are not over come first."""
    older: tuple[RunRow, ...] = ()
    """Runs that are older than `runs`, as far as they were fetched, newest first."""
    trees: Mapping[str, RunView] = field(default_factory=lambda: MappingProxyType({}))
    """By run: the trees of the runs that are followed now, and of the last ones that were."""
    chosen: str | None = None
    follow_newest: bool = True
    """Whether the user wants a run that begins to become the chosen one."""
    wall_s: float = 0.0
    """Unix time of the newest sample."""
    samples: tuple[TokenSample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    """Samples of the engines' cards, else of the processor."""
    replay: Replay | None = None

    @property
    def shown(self) -> RunView | None:
        """The replayed run, else the chosen one. None before its first event."""
        if self.replay is not None:
            return self.replay.view
        return self.trees.get(self.chosen) if self.chosen is not None else None

    @property
    def listed(self) -> tuple[RunRow, ...]:
        """All rows. A run is over once its last event has arrived, even before the next poll."""
        return (*(_settle_row(row, self.trees.get(row.id)) for row in self.runs), *self.older)

    @property
    def oldest(self) -> RunRow | None:
        return self.older[-1] if self.older else min(self.runs, key=_age_key, default=None)

    @property
    def has_older(self) -> bool:
        kept = None if self.daemon is None else self.daemon.kept
        return kept is not None and kept > len(self.runs) + len(self.older)

    @property
    def chosen_row(self) -> RunRow | None:
        return next((r for r in self.listed if r.id == self.chosen), None)

    @property
    def problem(self) -> str:
        """The shown run's problem. While the run waits, the beginning that the listing has."""
        row = self.chosen_row
        whole = self.shown.problem if self.shown is not None else ""
        return whole or ("" if row is None else row.problem)

    @property
    def prediction(self) -> str:
        """The predicted length of the shown run's paths, in words. Empty where not known."""
        row = self.chosen_row
        return "" if self.replay is not None or row is None else row.prediction

    @property
    def rates(self) -> tuple[Rate, ...]:
        return compute_rates(self.samples)

    @property
    def current_rate(self) -> Rate | None:
        """The rate at the newest sample. None if that sample gives no rate (`compute_rates`)."""
        rates = compute_rates(self.samples[-_RECENT:])
        return rates[-1] if rates and rates[-1].at_s == self.samples[-1].at_s else None

    def compute_run_rate(self, run: str) -> float | None:
        rates = compute_rates(self.samples[-_RECENT:], run)
        return rates[-1].tokens_per_s if rates else None

    def find_elapsed_s(self, row: RunRow) -> float | None:
        """Seconds since the run left the queue. Once it is over: its whole time, with the queue."""
        if not row.live:
            return row.total_s
        tree = self.trees.get(row.id)
        if tree is None or tree.state == "waiting" or not row.created_at or not self.wall_s:
            return None
        return max(self.wall_s - row.created_at - tree.queue_s, 0.0)

    @property
    def shown_elapsed_s(self) -> float | None:
        """Seconds since the shown run left the queue; in a replay, how far it has come."""
        if self.replay is not None:
            return self.replay.at_s
        return None if self.chosen_row is None else self.find_elapsed_s(self.chosen_row)


def fold_events(state: Dashboard, run: str, items: Iterable[Numbered]) -> Dashboard:
    before = state.trees.get(run) or RunView(id=run)
    return _set_tree(state, fold(before, items))


def interrupt_run(state: Dashboard, run: str) -> Dashboard:
    before = state.trees.get(run) or RunView(id=run)
    return _set_tree(state, interrupt(before))


def update_daemon(
    state: Dashboard, daemon: DaemonStatus, runs: Sequence[RunRow], *, follow: bool = True
) -> Dashboard:
    """Show a new snapshot of the daemon. follow: choose the newest run that has started since the
    last one, or if none runs, the newest that was queued since."""
    known = {r.id: r.status for r in state.runs}
    ordered = tuple(
        sorted(runs, key=lambda r: (not r.live, r.status != "running", r.position or 0))
    )
    begun = [r for r in _list_running(runs) if known.get(r.id) != r.status]
    newest = max(begun, key=lambda r: r.created_at, default=None)
    chosen = state.chosen  # it may be newer than this snapshot, or older than the listing
    if chosen is None and ordered:
        chosen = ordered[0].id
    elif newest is not None and follow:
        chosen = newest.id
    older = _keep_older(state, daemon, runs)
    return replace(state, lost=None, daemon=daemon, runs=ordered, older=older, chosen=chosen)


def add_older(state: Dashboard, page: Sequence[RunRow]) -> Dashboard:
    known = {r.id for r in state.listed}
    return replace(state, older=(*state.older, *(r for r in page if r.id not in known)))


def lose_daemon(state: Dashboard, error: str, retry_in_s: float) -> Dashboard:
    return replace(state, lost=LostDaemon(error=error, retry_in_s=retry_in_s), daemon=None)


def choose(state: Dashboard, run: str, *, follow_newest: bool = False) -> Dashboard:
    """Show this run, and stay with it unless the user follows the newest one."""
    return replace(state, chosen=run, follow_newest=follow_newest)


def follow_newest(state: Dashboard, on: bool) -> Dashboard:
    """Switch following on or off. When on, choose the newest running or else waiting run."""
    newest = max(_list_running(state.runs), key=lambda r: r.created_at, default=None)
    chosen = newest.id if on and newest is not None else state.chosen
    return replace(state, follow_newest=on, chosen=chosen)


def find_runs_to_follow(state: Dashboard) -> tuple[str, ...]:
    """Runs whose events are needed: those that are not over, and the chosen one."""
    wanted = [r.id for r in state.runs if r.live]
    if state.chosen is not None and state.chosen not in wanted:
        wanted.append(state.chosen)
    return tuple(r for r in wanted if r not in state.trees or not state.trees[r].over)


def take_sample(state: Dashboard, at_s: float, wall_s: float = 0.0) -> Dashboard:
    """Note how many tokens the runs have at `at_s`, or the replayed run alone in a replay. A run
    that was counted once stays, so that the tokens of its last moments are not lost."""
    counted = {r.id for r in state.runs if r.live}
    counted |= state.samples[-1].counts.keys() if state.samples else set()
    trees = [t for t in state.trees.values() if t.id in counted]
    if state.replay is not None:
        trees = [state.replay.view]
    counts = MappingProxyType({t.id: (t.all_tokens, t.kept_tokens) for t in trees})
    kept = [sample for sample in state.samples if at_s - sample.at_s < KEPT_S]
    samples = (*kept, TokenSample(at_s=at_s, counts=counts))
    return replace(state, samples=samples, wall_s=wall_s)


def compute_rates(samples: tuple[TokenSample, ...], run: str | None = None) -> tuple[Rate, ...]:
    """Compute the rate at each sample over the window before it, of `run` or of all runs together.
    A run counts from its first sample within the window. A sample whose runs all lack an earlier
    sample in the window gives no rate."""
    rates, times = [], [sample.at_s for sample in samples]
    for index, now in enumerate(samples[1:], start=1):
        first = min(bisect_left(times, now.at_s - WINDOW_S), index - 1)
        counts = {name: c for name, c in now.counts.items() if run is None or name == run}
        before = samples[first:index][::-1]  # reversed: a run's earliest sample is written last
        earlier = {name: s.counts[name] for s in before for name in counts if name in s.counts}
        elapsed_s = now.at_s - times[first]
        if elapsed_s <= 0 or ((counts or run is not None) and not earlier):
            continue
        generated, kept = (
            sum(max(counts[name][part] - was[part], 0) for name, was in earlier.items()) / elapsed_s
            for part in (0, 1)
        )
        rates.append(Rate(at_s=now.at_s, tokens_per_s=generated, goodput_per_s=kept))
    return tuple(rates)


# The store keeps no times: a run's duration is spread over its events by the tokens of each step.


def build_replay(run: str, items: Sequence[Numbered]) -> Replay:
    """Build a replay that stands at the run's start. items: all its events, at least one."""
    weights = [
        float(len(event.token_ids)) if isinstance(event, StepCompleted) else _OTHER_WEIGHT
        for _, event in items
    ]
    total, end = sum(weights) or 1.0, items[-1][1]
    timing = end.result.get("timing") or {} if isinstance(end, RunFinished) else {}
    length_s = float(timing.get("total_s") or 0.0) - float(timing.get("queue_s") or 0.0)
    length_s = length_s if length_s > 0 else _EVENT_S * len(items)
    offsets = tuple(length_s * done / total for done in accumulate(weights))
    return Replay(items=tuple(items), offsets_s=offsets, view=RunView(id=run))


def show_replay(state: Dashboard, replay: Replay | None) -> Dashboard:
    """Begin this replay in place of the chosen run, or end the current one if it is None."""
    if replay is None and state.replay is None:
        return state  # with its samples, and so with the rates
    return replace(state, replay=replay, samples=())


def advance_replay(state: Dashboard, elapsed_s: float) -> Dashboard:
    if state.replay is None or state.replay.over:
        return state
    return replace(state, replay=state.replay.advance(elapsed_s))


def speed_up_replay(state: Dashboard) -> Dashboard:
    """Replay at the next speed, and after the last one at the first again."""
    if state.replay is None:
        return state
    speed = SPEEDS[(SPEEDS.index(state.replay.speed) + 1) % len(SPEEDS)]
    return replace(state, replay=replace(state.replay, speed=speed))


def _keep_older(
    state: Dashboard, daemon: DaemonStatus, runs: Sequence[RunRow]
) -> tuple[RunRow, ...]:
    """List the older runs, including those that newer ones pushed out of the snapshot `runs`. Empty
    if runs were deleted since the last snapshot, because this one does not tell which."""
    if not state.older or not runs:
        return ()
    now, end = {r.id for r in runs}, min(map(_age_key, runs))
    pushed = [r for r in state.runs if r.id not in now and not r.live and _age_key(r) < end]
    pushed.sort(key=_age_key, reverse=True)
    older = (*pushed, *(r for r in state.older if r.id not in now))
    before = None if state.daemon is None else state.daemon.kept
    if daemon.kept is None or daemon.kept < max(len(runs) + len(older), before or 0):
        return ()
    return older


def _settle_row(row: RunRow, tree: RunView | None) -> RunRow:
    """Complete a live row from the run's tree, if the tree's last event has arrived."""
    if not row.live or tree is None or not tree.over:
        return row
    answer = None if tree.result is None else find_answer(tree)
    timing = (tree.result or {}).get("timing") or {}
    return replace(
        row,
        status=tree.state,
        answer=None if answer is None else show_in_line(answer),
        tokens=tree.all_tokens,
        total_s=timing.get("total_s"),
        position=None,
        starts_in_s=None,
        prediction="",
    )


def _list_running(runs: Sequence[RunRow]) -> list[RunRow]:
    """List the runs that run, or if none does, those that wait."""
    return [r for r in runs if r.status == "running"] or [r for r in runs if r.live]


def _age_key(row: RunRow) -> tuple[float, str]:
    """The key by which the daemon's listing is sorted, here from the oldest on."""
    return row.created_at, row.id


def _set_tree(state: Dashboard, run: RunView) -> Dashboard:
    """Keep the run's tree as the newest. Above TREES_KEPT, drop old ones of runs that are over."""
    trees = {k: v for k, v in state.trees.items() if k != run.id} | {run.id: run}
    spare = [k for k, v in trees.items() if v.over and k not in (state.chosen, run.id)]
    for old in spare[: max(len(trees) - TREES_KEPT, 0)]:
        del trees[old]
    return replace(state, trees=MappingProxyType(trees))

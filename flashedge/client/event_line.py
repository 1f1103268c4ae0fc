"""The lines of a run's event log: each event in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from flashedge import events
from flashedge.client.words import format_count
from flashedge.events import Event
from flashedge.literal import show_in_line

_CATEGORIES: Mapping[str, tuple[type, ...]] = {
    "steps": (
        events.NodesExpanded,
        events.StepCompleted,
        events.NodeScored,
        events.NodesMarked,
        events.RolloutsEnded,
        events.RolloutsInFlight,
    ),
    "certainty": (events.RolloutsAllowed, events.Probed, events.CertaintyUpdated, events.EarlyExit),
    "memory": (events.PromptRead, events.KvSplitChanged, events.Offloaded, events.Restored),
    "errors": (events.EngineRestarted, events.RunFailed, events.RunCancelled),
}
CATEGORIES = tuple(_CATEGORIES)
"""What the lines can be filtered by. RunStarted and RunFinished belong to none of them."""

FEW_SCORES = 4
"""Up to this many consecutive scores of a level have a line each; more share one. Chosen by hand:
with 40, a beam's scores would push the other steps out of the log."""

PROBE_CHARS = 60
"""Most characters that a line shows of a probe's text, which is an answer if the probe found one.
Chosen by hand: answers are shorter, and with 600 one probe would fill the log's panel."""


class ScoreTally(NamedTuple):
    """The scores of nodes at one depth: how many, the best, and their sum."""

    depth: int
    scored: int
    best: float
    sum: float

    @property
    def mean(self) -> float:
        return self.sum / self.scored

    def describe(self) -> str:
        figures = f"{self.scored} scores, best {self.best:.2f}, mean {self.mean:.2f}"
        return f"level {self.depth}: {figures}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    seq: int
    category: str
    """One of `CATEGORIES`, or "run"."""
    text: str
    tally: ScoreTally | None = None
    """The tally of this score and those of its level right before it. None for other events."""


def find_category(event: Event) -> str:
    return next((name for name, kinds in _CATEGORIES.items() if isinstance(event, kinds)), "run")


def tally_score(before: ScoreTally | None, depth: int, score: float) -> ScoreTally:
    """Add the score of a node at level `depth` to `before`, the tally of the scores right before
    it. Another level begins a new tally."""
    if before is None or before.depth != depth:
        return ScoreTally(depth, 1, score, score)
    return ScoreTally(depth, before.scored + 1, max(before.best, score), before.sum + score)


def describe(event: Event) -> str | None:
    """Describe the event in one line. Returns None for Progress: it comes too often for the log."""
    text = _describe(event)
    return None if text is None else show_in_line(text)


def _describe(event: Event) -> str | None:
    match event:
        case events.RunStarted():
            return f"started after {event.queue_s:.1f} s in the queue"
        case events.NodesExpanded():
            first = event.children[0][0] if event.children else "-"
            return f"node {event.parent}: {len(event.children)} children from {first}"
        case events.PromptRead():
            return f"prompt read: {event.cached_tokens} of {event.tokens} tokens were cached"
        case events.StepCompleted():
            return f"node {event.node}: {len(event.token_ids)} tokens, {event.finish}"
        case events.NodeScored():
            return f"node {event.node}: score {event.score:.2f}"
        case events.NodesMarked():
            return f"{format_count(len(event.nodes), 'node')} {event.status}"
        case events.RolloutsEnded():
            ends = ", ".join(str(node) for node in event.nodes)
            ended = f"{format_count(len(event.nodes), 'rollout')} ended in node {ends}"
            cut = f"{format_count(event.futile, 'futile rollout')} cut"
            return ", ".join(([ended] if event.nodes else []) + ([cut] if event.futile else []))
        case events.RolloutsInFlight(flights=flights):
            return f"{format_count(len(flights), 'rollout')} in flight"
        case events.RolloutsAllowed(rollouts=rollouts, of=of):
            most = format_count(rollouts, "rollout")
            return f"at most {most} in flight" + (f", of {of} for all runs" if of else "")
        case events.CertaintyUpdated():
            value = "unknown" if event.certainty is None else f"{event.certainty:.2f}"
            return f"certainty {value} from {format_count(event.answers, 'answer')}"
        case events.Probed():
            return f"node {event.node} probed: {show_in_line(event.text)[:PROBE_CHARS]}"
        case events.EarlyExit():
            return f"stopped early: {event.reason.replace('_', ' ')}"
        case events.EngineRestarted():
            return f"the {event.engine} engine died and was restarted in {event.waited_s:.1f} s"
        case events.KvSplitChanged():
            generator = f"{event.generator_bytes / 2**20:.0f} MiB generator"
            verifier = f"{event.verifier_bytes / 2**20:.0f} MiB verifier"
            turns = ", one engine at a time" if event.offload else ""
            return f"KV memory: {generator}, {verifier}{turns}"
        case events.Offloaded():
            return f"{event.engine} KV offloaded: {event.saved_bytes / 2**20:.0f} MiB saved"
        case events.Restored():
            return f"{event.engine} KV restored: {event.loaded_bytes / 2**20:.0f} MiB loaded"
        case events.RunFinished():
            answer = event.result.get("answer")
            return f"finished: {'no boxed answer' if answer is None else f'the answer is {answer}'}"
        case events.RunFailed():
            return f"failed: {event.error}"
        case events.RunCancelled():
            return f"cancelled: {event.reason}"
        case events.Progress():
            return None
    assert_never(event)

"""Lets a search of the product run on recorded answers, and counts what it would have taken.

The paths are in a batch that gives each a token a step: those that begin together end the shortest
first, and what an open path has drawn by a stop is paid. A search that ends a path early, by a
confidence that was recorded, pays up to that token. Scores come at once, as the verifier's time is
not counted.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flashedge.certainty.measures import LEAD
from flashedge.engine.base import Chunk
from flashedge.runtime.drive.segments import ConfidenceStop
from flashedge.search.base import (
    Cancel,
    Cluster,
    Clustered,
    Expand,
    Finish,
    Generated,
    Probe,
    ProbeResult,
    Reached,
    Result,
    Score,
    Scored,
    Watch,
)
from flashedge.search.strategies.probed_cot import ProbedCot, read_probe
from flashedge.search.tree import Tree
from flashedge.search.voting import Search
from flashedge.types import FinishReason, Granularity, Limits, NodeId, Problem, Segment
from scripts.bench.certainty.samples import Sample, Vote

LIMITS = Limits(max_path_tokens=1 << 30)
Curve = Callable[[int], float]
"""Batch -> milliseconds of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a vote ended under a rule."""

    answer: str | None
    tokens: int
    """Of all paths, and of probes."""
    seconds: float
    scored: int
    """Tokens of the paths that were scored."""
    lead: float | None
    """How sure the rule was that all paths would give this answer. None if it drew them all, or
    does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A path or a probe that is being drawn."""

    end: int
    """By the clock, which counts steps."""
    tokens: int
    result: Result


def replay(search: Search[Any], vote: Vote, curve: Curve) -> End:
    if isinstance(search, ProbedCot):
        vote = vote.put_probed_first()
    state, commands = search.start(Problem.from_text(vote.name), 0, LIMITS)
    work, open_ = deque(commands), dict[tuple[NodeId, bool], _Open]()
    clock, tokens, scored, seconds = 0, 0, 0, 0.0

    def begin(node: NodeId, count: int, result: Result) -> None:
        key = (node, isinstance(result, ProbeResult))
        open_[key] = _Open(end=clock + count, tokens=count, result=result)

    while True:
        while work:
            told: list[Result] = []
            match work.popleft():
                case Expand(children=children, granularity=bound):
                    for child in children:
                        segment = draw(state.tree, child.node, bound, vote)
                        made = Generated(node=child.node, segment=segment)
                        begin(child.node, len(segment.token_ids), made)
                case Probe(node=node, suffix=suffix, tail_tokens=tail):
                    at = state.tree[node].path_tokens // vote.probe_tokens - 1
                    text, count, closed = vote.samples[0].probes[at]
                    if tail == 0:
                        text, count = text[: read_probe(suffix, text)[1]], closed
                    begin(node, count, ProbeResult(node=node, text=text))
                case Score(nodes=nodes):
                    scored += sum(state.tree[node].path_tokens for node in nodes)
                    told = [Scored(node=n, scores=find(state.tree, n, vote).scores) for n in nodes]
                case Cluster(nodes=nodes):
                    answers = {node: read_answer(state.tree, node, vote) for node in nodes}
                    told = [Clustered(answers=answers)]
                case Cancel(nodes=nodes):
                    for node in nodes:
                        gone = open_.pop((node, False))
                        tokens += gone.tokens - (gone.end - clock)
                case Watch():
                    pass  # all that is watched is told below
                case Finish(answer=answer):
                    tokens += sum(one.tokens - (one.end - clock) for one in open_.values())
                    is_whole = len(state.complete) == len(vote.samples)
                    lead = state.history[-1].measures.get(LEAD) if state.history else None
                    return End(
                        answer=answer,
                        tokens=tokens,
                        seconds=seconds,
                        scored=scored,
                        lead=None if is_whole else lead,
                    )
            for result in told:
                state, new = search.tell(state, result)
                work += new
        key = min(open_, key=lambda key: (open_[key].end, key))
        first = open_[key]
        seconds += (first.end - clock) * curve(len(open_)) / 1e3
        del open_[key]
        clock = first.end
        tokens += first.tokens
        for result in (first.result, *(Reached(node=n, tokens=clock + 1) for n, _ in open_)):
            state, new = search.tell(state, result)
            work += new


def find(tree: Tree, node: NodeId, vote: Vote) -> Sample:
    """The sample that the path of a node is."""
    return vote.samples[tree.path(node)[0].index]


def draw(tree: Tree, node: NodeId, bound: Granularity, vote: Vote) -> Segment:
    """What follows the node's parent in its sample."""
    sample, parent = find(tree, node, vote), tree[node].parent
    start = 0 if parent is None else tree[parent].path_tokens
    count = min(bound.max_tokens, sample.tokens - start)
    finish = FinishReason.STOP if start + count == sample.tokens else FinishReason.STEP_LIMIT
    segment = make_segment(count, max(1, len(sample.scores)), finish)
    if bound.confidence_rule is None:
        return segment
    chunk = ConfidenceStop(bound.confidence_rule).cut(
        Chunk(
            token_ids=segment.token_ids,
            logprobs=segment.logprobs,
            confidences=sample.confidences,
            finish=finish,
        )
    )
    assert chunk.finish is not None, "it has one or gets another"
    return Segment(
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        text="",
        steps=segment.steps,
        finish=chunk.finish,
        confidences=chunk.confidences,
    )


@lru_cache(1 << 12)
def make_segment(tokens: int, steps: int, finish: FinishReason) -> Segment:
    """A segment of which only the length counts."""
    zeros = (0,) * tokens
    return Segment(token_ids=zeros, logprobs=zeros, text="", steps=("",) * steps, finish=finish)


def read_answer(tree: Tree, node: NodeId, vote: Vote) -> str | None:
    """A path that was ended before its end has none."""
    segment = tree[node].segment
    is_whole = segment is not None and segment.finish is FinishReason.STOP
    return find(tree, node, vote).answer if is_whole else None

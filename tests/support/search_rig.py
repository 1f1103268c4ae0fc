"""A simulated world for searches: a node's text and scores are a pure function of its seed.

Texts use a small alphabet, so duplicates occur. Scores have one decimal, so ties occur.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from flashedge.answers.extraction import extract_answer
from flashedge.answers.spelling import normalize
from flashedge.engine.base import Chunk
from flashedge.runtime.drive.segments import ConfidenceStop
from flashedge.search import base
from flashedge.search.base import Cancel, Command, Finish, Result
from flashedge.search.tree import Tree, mix64
from flashedge.search.voting import Search
from flashedge.types import (
    ConfidenceRule,
    FinishReason,
    Granularity,
    Limits,
    NodeId,
    Problem,
    Segment,
    TokenIds,
)

PROBLEM = Problem.from_text("How many?")
LIMITS = Limits(max_path_tokens=40)


def make_segment(*steps: str, tokens: TokenIds, finish: FinishReason) -> Segment:
    logprobs, text = (-0.5,) * len(tokens), "".join(steps)
    return Segment(token_ids=tokens, logprobs=logprobs, text=text, steps=steps, finish=finish)


def end_unsure(segment: Segment, rule: ConfidenceRule, confidences: tuple[float, ...]) -> Segment:
    """Say how sure the model was of each token, up to that at which the rule ends the path."""
    drawn = Chunk(
        token_ids=segment.token_ids,
        logprobs=segment.logprobs,
        confidences=confidences,
        finish=segment.finish,
    )
    cut = ConfidenceStop(rule).cut(drawn)
    assert cut.finish is not None, "it has one or gets another"
    return replace(
        segment,
        token_ids=cut.token_ids,
        logprobs=cut.logprobs,
        confidences=cut.confidences,
        finish=cut.finish,
    )


@dataclass(frozen=True)
class World:
    seed: int = 0

    def segment(self, tree: Tree, node: NodeId, bound: Granularity) -> Segment:
        at = tree[node]
        random = Random(mix64(self.seed, at.seed, at.depth))
        length = random.randint(1, min(bound.max_tokens, 9))
        kind = random.random()
        finish = FinishReason.STEP_LIMIT
        if kind < 0.8:
            goes_on = kind < 0.6 and not bound.to_end
            finish = FinishReason.BOUNDARY if goes_on else FinishReason.STOP
        elif kind < 0.83 and not bound.to_end:
            finish = FinishReason.LENGTH
        if finish is FinishReason.STEP_LIMIT:
            length = bound.max_tokens
        count = random.randint(1, 3) if bound.to_end else 1
        steps = [f"{random.choice('ab')}{random.choice(('', ' '))}\n\n" for _ in range(count)]
        if finish is FinishReason.STOP and random.random() < 0.8:
            steps[-1] = f"\\boxed{{{random.choice(['7', '07', '8', 'x+1'])}}}"
        tokens = tuple(random.randrange(100) for _ in range(length))
        segment = make_segment(*steps, tokens=tokens, finish=finish)
        rule = bound.confidence_rule
        if rule is None:
            return segment
        return end_unsure(segment, rule, tuple(round(random.random(), 1) for _ in tokens))

    def scores(self, tree: Tree, node: NodeId) -> tuple[float, ...]:
        at = tree[node]
        assert at.segment is not None
        random = Random(mix64(self.seed, at.seed, at.depth, 7))
        return tuple(round(random.random(), 1) for _ in at.segment.steps)

    def clusters(self, tree: Tree, nodes: tuple[NodeId, ...]) -> dict[NodeId, str | None]:
        first: dict[str, str] = {}
        answers = {node: extract_answer(tree.path_text(node)) for node in nodes}
        return {n: first.setdefault(normalize(a), a) if a else None for n, a in answers.items()}

    def answer_probe(self, seed: int) -> str:
        """The model's text after a probe that opened a box."""
        return Random(mix64(self.seed, seed)).choice(["7}", "07}", "8} wait", "7} done", "8", "}"])

    def results(self, tree: Tree, commands: tuple[Command, ...]) -> list[Result]:
        """The results that engines would return for `commands`."""
        made: list[Result] = []
        for command in commands:
            match command:
                case base.Expand(children=children, granularity=bound):
                    for child in children:
                        segment = self.segment(tree, child.node, bound)
                        made.append(base.Generated(node=child.node, segment=segment))
                case base.Score(nodes=nodes):
                    made += [base.Scored(node=n, scores=self.scores(tree, n)) for n in nodes]
                case base.Cluster(nodes=nodes):
                    made.append(base.Clustered(answers=self.clusters(tree, nodes)))
                case base.Probe(node=node, seed=seed):
                    made.append(base.ProbeResult(node=node, text=self.answer_probe(seed)))
                case base.Watch(tokens=tokens):
                    made += self.reach(tree, tokens)
                case Cancel() | Finish():
                    pass
        return made

    def reach(self, tree: Tree, tokens: Mapping[NodeId, int]) -> list[Result]:
        """What is told of watched nodes: whole paths that end earlier have only their
        `Generated`."""
        bound = Granularity(max_tokens=LIMITS.max_path_tokens, to_end=True)
        lengths = {node: len(self.segment(tree, node, bound).token_ids) for node in tokens}
        return [base.Reached(node=n, tokens=t) for n, t in tokens.items() if lengths[n] >= t]


@dataclass
class Run:
    states: list[Any] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    finish: Finish | None = None
    left: list[Result] = field(default_factory=list)

    @property
    def tree(self) -> Tree:
        return self.states[-1].tree

    @property
    def end(self) -> Finish:
        assert self.finish is not None
        return self.finish


def drive(
    search: Search[Any],
    *,
    limits: Limits = LIMITS,
    seed: int = 5,
    world: World | None = None,
    order: Random | None = None,
    stop_after: int | None = None,
    watch: Callable[[Any], None] = lambda state: None,
) -> Run:
    """Drive to the Finish with results in a random order; conclude after `stop_after` results, with
    the rest in `left`."""
    world, order = world or World(), order or Random(0)
    run = Run()
    state, commands = search.start(PROBLEM, seed, limits)
    pending: list[Result] = []
    while True:
        run.states.append(state)
        run.commands += commands
        watch(state)
        if finishes := [c for c in commands if isinstance(c, Finish)]:
            (run.finish,) = finishes
            run.left += pending
            return run
        pending += world.results(state.tree, commands)
        if stop_after is not None and len(run.results) >= stop_after:
            stop_after = None
            run.left, pending = pending, []
            state, commands = search.conclude(state)
            continue
        assert pending, "the search waits for no result"
        result = pending.pop(order.randrange(len(pending)))
        run.results.append(result)
        state, commands = search.tell(state, result)

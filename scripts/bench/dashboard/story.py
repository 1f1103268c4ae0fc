"""A made-up beam search of many paths, as events. The same seed gives the same events."""

import random
from collections.abc import Iterator

from flashedge import events
from flashedge.events import Event
from flashedge.types import NodeId

BRANCHING = 4
_STEP = "Day {d}: finds {a}. {b}+{a}={c}, which is what the next step starts with.\n\n"


def levels(n: int, depth: int, seed: int) -> Iterator[list[Event]]:
    """The events of each level: expansions, steps and scores in a random order, marks."""
    rng = random.Random(seed)
    free, kept = 1, [NodeId(0)]
    for level in range(1, depth + 1):
        batch: list[Event] = []
        nodes: list[NodeId] = []
        width = n // len(kept)
        for parent in kept:
            made = tuple((NodeId(free + i), i, 0) for i in range(width))
            free += width
            nodes += [node for node, _, _ in made]
            batch.append(events.NodesExpanded(parent=parent, depth=level, children=made))
        order = rng.sample(nodes, len(nodes))
        batch += [_step(node, level, rng) for node in order]
        scores = {node: rng.random() for node in order}
        batch += [events.NodeScored(node=i, scores=(s,), score=s) for i, s in scores.items()]
        best = sorted(nodes, key=lambda i: -scores[i])
        if level == depth:
            batch.append(events.NodesMarked(status="complete", nodes=tuple(nodes)))
        else:
            kept = best[: n // BRANCHING]
            batch.append(events.NodesMarked(status="active", nodes=tuple(kept)))
            batch.append(events.NodesMarked(status="pruned", nodes=tuple(best[len(kept) :])))
        sure = level / depth
        batch.append(events.CertaintyUpdated(certainty=sure, answers=level))
        yield batch


def _step(node: NodeId, level: int, rng: random.Random) -> events.StepCompleted:
    tokens = rng.randint(20, 60)
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    text = _STEP.format(d=level, a=a, b=b, c=a + b)
    return events.StepCompleted(
        node=node,
        token_ids=tuple(rng.randrange(32_000) for _ in range(tokens)),
        logprobs=tuple(-rng.random() for _ in range(tokens)),
        text=text,
        steps=(text,),
        finish="boundary",
    )

"""Recorded answers to problems whose answer is known, and votes among them."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer
from flashedge.certainty.calibration import Ending, RunTrace
from flashedge.certainty.measures import ENTROPY, Checkpoint, measure_certainty

Orders = Sequence[Sequence["Vote"]]
"""(orders, problems) The same votes with the samples of each problem in several orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An answer to a problem. What `score` has not added is empty."""

    tokens: int
    answer: str | None
    """By group: equal answers are the same text."""
    scores: tuple[float, ...] = ()
    """(num_steps,) by the verifier"""
    confidences: tuple[float, ...] = ()
    """(tokens,)"""
    probes: tuple[tuple[str, int, int], ...] = ()
    """The text of each probe, its tokens, and those up to the end of its box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Independent answers to one problem."""

    name: str
    known: str
    """The right answer."""
    right: frozenset[str]
    """The groups that are right."""
    samples: tuple[Sample, ...]
    probe_tokens: int = 0
    """Tokens between two probes."""
    winner: str | None = field(init=False)
    """The answer of all paths."""

    def __post_init__(self) -> None:
        leader, _, _ = count_leader(sample.answer for sample in self.samples)
        object.__setattr__(self, "winner", leader)

    def is_right(self, answer: str | None) -> bool:
        """Whether an answer is right, which may be a probe's, of no group."""
        return answer in self.right or (
            answer is not None and bool(decide_equal(answer, self.known))
        )

    def take_order(self, order: Sequence[int]) -> "Vote":
        """The same samples in another order."""
        return replace(self, samples=tuple(self.samples[i] for i in order))

    def put_probed_first(self) -> "Vote":
        """For a chain, which is one path."""
        return replace(self, samples=tuple(sorted(self.samples, key=lambda one: not one.probes)))

    def build_trace(self) -> RunTrace:
        """What the policies of a calibration would see after each path."""
        stops, checkpoints, tokens = [], [], 0
        for i, sample in enumerate(self.samples, 1):
            seen = [one.answer for one in self.samples[:i]]
            tokens += sample.tokens
            leader, _, _ = count_leader(seen)
            certainty = measure_certainty(seen)
            measures = {} if certainty is None else {ENTROPY: certainty}
            checkpoints.append(
                Checkpoint(progress=i, tokens=tokens, answers=i, measures=measures, answer=leader)
            )
            stops.append(Ending(right=leader in self.right, tokens=tokens))
        return RunTrace(
            problem=self.name,
            cap=len(self.samples),
            checkpoints=tuple(checkpoints),
            stops=tuple(stops),
            whole=stops[-1],
        )


def count_leader(answers: Iterable[str | None]) -> tuple[str | None, int, int]:
    """(answer, count, count of the next one) of the most frequent answer; of equals the earlier."""
    counted = Counter(a for a in answers if a is not None)
    leader = max(counted, key=counted.__getitem__, default=None)
    first, second = (*(count for _, count in counted.most_common(2)), 0, 0)[:2]
    return leader, first, second


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Read lines of JSON, or .gz of them."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def make_vote(row: dict[str, Any], name: str) -> Vote:
    """Answers are equal where spelling or number decides it."""
    groups: list[str] = []
    samples = []
    for i, text in enumerate(row["texts"]):
        answer = extract_answer(text)
        if answer is not None:
            found = (known for known in groups if decide_equal(answer, known))
            answer = next(found, answer)
            groups.append(answer)
        scores, confidences = (
            row[key][i] if key in row else () for key in ("scores", "confidences")
        )
        probes = [tuple(p) for of_sample in row.get("probes", ())[i : i + 1] for p in of_sample]
        if (size := row.get("probe_tokens")) and i < len(row["probes"]):
            # fewer, if the text was encoded to fewer tokens than `lens` says
            probes += [("", 0, 0)] * ((row["lens"][i] - 1) // size - len(probes))
        samples.append(
            Sample(
                tokens=row["lens"][i],
                answer=answer,
                scores=tuple(scores),
                confidences=tuple(confidences),
                probes=tuple(probes),
            )
        )
    right = frozenset(a for a in set(groups) if decide_equal(a, row["answer"]))
    return Vote(
        name=name,
        known=row["answer"],
        right=right,
        samples=tuple(samples),
        probe_tokens=row.get("probe_tokens", 0),
    )


def shuffle_votes(votes: Sequence[Vote], count: int) -> Orders:
    """The votes as drawn, and in count - 1 further orders."""
    draw, cap = Random(0), len(votes[0].samples)
    shuffled = (
        [vote.take_order(draw.sample(range(cap), cap)) for vote in votes] for _ in range(count - 1)
    )
    return [votes, *shuffled]

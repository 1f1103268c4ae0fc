"""What simulated searches write: steps of recorded trees, with their own or other lengths.

A step's tokens are all the same number, which names its content; its text names it too. So a path
says by its last token where in the recorded tree it is. The content of a node is a function of the
problem, the run and the path, as with real models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from flashedge.engine.base import NO_VARIABLES
from flashedge.search.step_rules import BoundaryRule
from flashedge.search.tree import child_seed, mix64
from flashedge.types import Message, Problem, TokenIds
from scripts.bench.mcts.recorded_tree import RecordedNode, RecordedProblem
from scripts.lab.sim.model import EOS, RULES, TraceRow

FILLER, FIRST = 1, 1024
LEAST_TOKENS, MOST_TOKENS, MOST_CHILDREN = 3, 1024, 64
_RUN = re.compile(r"run (\d+)")
_STEP = re.compile(r"s(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The text of one node, or the prompt of a run."""

    id: int
    node: RecordedNode
    key: int
    """Hash of the path."""
    seeds: list[int]
    """Of the siblings that read so. A search goes on from one of them."""
    tokens: int
    run: SimulatedProblem

    @property
    def text(self) -> str:
        if not self.node.ends:
            return f"s{self.id}\n\n"
        return f"s{self.id}" + (f" \\boxed{{{self.answer}}}" if self.answer else "")

    @property
    def answer(self) -> str | None:
        """ "right", or what stands for a wrong answer."""
        answer = self.node.answer
        if answer is None:
            return None
        return "right" if self.run.problem.right.get(answer, False) else f"wrong-{answer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProblem:
    """A problem as one run asks it."""

    number: int
    """Of the run, so that no run finds another's KV (as in arXiv 2604.00510 §5.1)."""
    problem: RecordedProblem
    lengths: TraceRow | None
    """Of prompt and steps. None: as recorded."""

    @property
    def prompt_tokens(self) -> int:
        row = self.lengths
        return self.problem.prompt_tokens if row is None else row.prompt_tokens

    def draw_tokens(self, node: RecordedNode, step: int, key: int) -> int:
        """Tokens of a node: its own, or those of one of the samples at the same step. key: of its
        path."""
        if self.lengths is None:
            return max(LEAST_TOKENS, node.tokens)
        samples = self.lengths.step_tokens
        reached = [sample[step] for sample in samples if len(sample) > step]
        pool = reached or [sample[-1] for sample in samples]
        return min(MOST_TOKENS, max(LEAST_TOKENS, pool[mix64(key, 7) % len(pool)]))

    def predict_tokens(self) -> float:
        """Mean length of a path."""
        if self.lengths is None:
            return self.problem.find_mean_path()
        return fmean(sum(sample) for sample in self.lengths.step_tokens)

    def as_problem(self) -> Problem:
        return Problem.from_text(f"run {self.number}")


class Contents:
    """All that is written in one load. Implements engine.base.Codec."""

    def __init__(self, runs: Sequence[SimulatedProblem]) -> None:
        self._known: dict[tuple[int, int], Content] = {}
        """By the content of the parent, and the index of the first child that reads so."""
        self._all: list[Content] = []
        self._prompts = [
            self._add(
                run.problem.root, run.problem.number, run.problem.number, run.prompt_tokens, run
            )
            for run in runs
        ]

    def _add(
        self, node: RecordedNode, key: int, seed: int, tokens: int, run: SimulatedProblem
    ) -> Content:
        content = Content(
            id=FIRST + len(self._all), node=node, key=key, seeds=[seed], tokens=tokens, run=run
        )
        self._all.append(content)
        return content

    def find(self, content_id: int) -> Content:
        return self._all[content_id - FIRST]

    def find_by_text(self, step: str) -> Content:
        found = _STEP.search(step)
        assert found is not None, step
        return self.find(int(found[1]))

    def find_prompt(self, problem: Problem) -> Content:
        found = _RUN.fullmatch(problem.text)
        assert found is not None, problem.text
        return self._prompts[int(found[1])]

    def extend(self, parent: Content, seed: int) -> Content:
        """The child of a path that is generated with this seed."""
        at = parent.node
        index = next(
            i
            for above, i in product(parent.seeds, range(MOST_CHILDREN))
            if child_seed(above, at.depth, i) == seed
        )
        known = self._known.get((parent.id, index))
        if known is not None:
            return known
        children = parent.run.problem.find_children(at, parent.key).children
        indices = sorted(children)
        place = index if index in children else indices[mix64(parent.key, index) % len(indices)]
        first = children[place].same
        content = self._known.get((parent.id, first))
        if content is None:
            key = mix64(parent.key, first)
            node = children[first]
            tokens = parent.run.draw_tokens(node, at.depth, key)
            content = self._add(node, key, seed, tokens, parent.run)
            self._known[parent.id, first] = content
        else:
            content.seeds.append(seed)
        self._known[parent.id, index] = content
        return content

    # ------------------------------------------------------------ engine.base.Codec

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def vocab_size(self) -> int:
        return 1 << 31

    @property
    def longest_token(self) -> int:
        return 1 << 20

    @property
    def rules(self) -> Mapping[str, BoundaryRule]:
        return RULES

    @property
    def think_tags(self) -> None:
        return None

    def encode(self, text: str) -> TokenIds:
        content = self.find_by_text(text)
        return (content.id,) * content.tokens

    def encode_chat(
        self, messages: Sequence[Message], variables: Mapping[str, Any] = NO_VARIABLES
    ) -> TokenIds:
        prompt = self.find_prompt(Problem(messages=tuple(messages)))
        return (prompt.id,) * prompt.tokens

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of whole steps. The tokens of a part of a step have the text of all of it."""
        texts = []
        previous = None
        for token in token_ids:
            if token != previous:
                texts.append(self.find(token).text)
            previous = token
        return "".join(texts)

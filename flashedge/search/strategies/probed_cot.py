"""One chain of thought with probes: it ends once the probes agree on an answer."""

import re
import sys
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer
from flashedge.answers.pairwise import group_by_first_match
from flashedge.certainty.measures import (
    CONSISTENCY,
    TV,
    Checkpoint,
    History,
    count_needed_probes,
    has_settled,
    hesitates,
    is_unsettled,
    measure_consistency,
    pick_settled_answer,
)
from flashedge.certainty.policies import Reason
from flashedge.errors import RequestError
from flashedge.search.base import Command, Finish, Probe, ProbeResult, Result
from flashedge.search.tree import ROOT, NodeStatus, Tree, mix64
from flashedge.search.voting import BUDGET, Phase, Search, SearchState
from flashedge.types import Granularity, Limits, NodeId, Problem, Vote

SUFFIX = "\n\nOh, I suddenly got the answer to the whole problem. Final Answer: \\boxed{"
_PROBE = 1 << 32  # a seed index that no child has
_MAX_BRACES = 16  # of a probe's text that may end its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedState(SearchState):
    leaf: NodeId = ROOT
    """The last node of the chain."""
    probe: NodeId | None = None
    """The node whose probe is running."""
    answers: tuple[str | None, ...] = ()
    """(num_probes,) the first member of each answer's group. None without a certain answer."""
    asked: History = ()
    """The checkpoints at which the policy was asked. `history` has one for each probe."""


Move = tuple[ProbedState, tuple[Command, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCot(Search[ProbedState]):
    """Chain of thought with probe-in-the-middle.

    The chain is child 0 of child 0 …, which keeps the root's noise, so its tokens are those of a
    chain without probes. A node's segment and the probe before it form one level: the search waits
    for both. Ref: arXiv 2412.20993 §2.1, App. E. Departures: probed answers are compared without
    mathematics (`decide_equal`); a chain that ends without a box takes the answer of its last
    probes; a chain that ends in the same level as a probe is not stopped by that probe.

    `policy` ends the chain by C_k. Its progress counts probes. There is one path, without a score,
    so `n`, `aggregate`, `selection` and `judges` have no effect here.
    """

    name: ClassVar[str] = "probed_cot"
    scores_levels: ClassVar[bool] = False
    n: int = 1
    probe_tokens: int = 64
    """T: a probe after every T tokens of the chain. 0 disables probes."""
    suffix: str = SUFFIX
    """What a probe adds to the chain before it generates. It opens the box of the answer."""
    max_probe_tokens: int = 32
    tail_tokens: int = 8
    """Of a probe, how many tokens behind its answer are drawn and searched for doubts."""
    window: int = 3
    """w of the consistency C_k."""
    give_up_after: int = 0
    """Probes after which an unsettled chain ends. 0 ends none. See `is_unsettled`."""
    give_up_below: float = 0.3
    """A chain is unsettled if less than this share of those probes agree."""
    beside: bool = True
    """Whether a probe and the next segment run together, so that an exit wastes up to T tokens."""
    tv_epsilon: float = 0.0
    """Above 0, the rule of App. E is measured too. See `measures.has_settled`."""
    tv_delta: float = 0.05
    """The chance with which that rule may fail (see `measures.count_needed_probes`)."""

    def __post_init__(self) -> None:
        if 0 < self.tv_epsilon < 1e-6:  # the probes it needs would exceed 64 bits
            raise RequestError("option tv_epsilon must be 0 or at least 1e-6", param="options")

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        ask_at = 1 if self.policy is None else self.policy.allot((), self.find_cap(limits)).more
        return self._expand(ProbedState(tree=Tree.from_seed(seed), limits=limits, ask_at=ask_at))

    def tell(self, state: ProbedState, result: Result) -> Move:
        if not isinstance(result, ProbeResult):
            # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
            return Search.tell(self, state, result)
        if state.probe is None or state.probe != result.node:
            return state, ()
        answer = None if hesitates(result.text) else read_probe(self.suffix, result.text)[0]
        answers = group_by_first_match(
            (*state.answers, answer), lambda a, b: decide_equal(a, b) is True
        )
        return self._decide(replace(state, probe=None, answers=answers))

    def take_segment(self, state: ProbedState, node: NodeId) -> Move:
        return self._decide(state)

    def stop(self, state: ProbedState) -> Move:
        leaf = state.tree[state.leaf]
        state = replace(self.settle_open(state, (leaf.id,)), probe=None)
        if leaf.status is NodeStatus.GENERATING:
            assert leaf.parent is not None, "the root is not generated"
            state = replace(state, leaf=leaf.parent)
        return self._group_answer(state)

    # ------------------------------------------------------------ the chain

    @property
    def max_steps(self) -> int:
        """A chain has no last step."""
        return sys.maxsize

    def choose_granularity(self, state: ProbedState, node: NodeId) -> Granularity:
        room = state.remaining_tokens(node)
        return Granularity(max_tokens=min(self.probe_tokens or room, room), to_end=True)

    def limit_children(self, state: ProbedState) -> int:
        return 1

    def _decide(self, state: ProbedState) -> Move:
        """Continue once the newest segment and the probe before it have both arrived."""
        leaf = state.tree[state.leaf]
        if state.probe is not None or leaf.status is NodeStatus.GENERATING:
            return state, ()
        if len(state.answers) > len(state.history):
            state = self._judge_probe(state)
        state = self.settle_open(state, (leaf.id,))
        if state.complete:
            return self._group_answer(replace(state, cut_by=None))
        if state.is_over_budget and state.cut_by is None:
            state = replace(state, cut_by=BUDGET)
        if state.cut_by is not None:
            return self._group_answer(state)
        if leaf.status is not NodeStatus.GENERATED:  # the chain waited for the probe
            return self._expand(state)
        probe = Probe(
            node=leaf.id,
            seed=mix64(leaf.seed, leaf.depth, _PROBE),
            suffix=self.suffix,
            max_tokens=self.max_probe_tokens,
            tail_tokens=self.tail_tokens,
        )
        state = replace(state, probe=leaf.id)
        if not self.beside:
            return state, (probe,)
        state, commands = self._expand(state)
        return state, (probe, *commands)

    def _expand(self, state: ProbedState) -> Move:
        state, (node,), expand = self.grow(state, state.leaf, 1)
        return replace(state, leaf=node), (expand,)

    def _group_answer(self, state: ProbedState) -> Move:
        shown = () if state.leaf == ROOT else (state.leaf,)
        return self.vote(replace(state, complete=shown), cut_by=state.cut_by)

    def finish(self, state: ProbedState) -> Move:
        own = state.tree[state.leaf].answer
        probed = pick_settled_answer(state.answers, self.window)
        stopped = state.cut_by in (Reason.CERTAINTY, Reason.NON_CONVERGENCE)
        answer = (probed or own) if stopped or state.is_unboxed else (own or probed)
        tree = state.tree.set_answers({state.leaf: answer})
        votes = () if answer is None else (Vote(answer=answer, weight=1.0, count=1),)
        unboxed = state.is_unboxed and probed is None
        finish = Finish(
            choice=state.leaf, answer=answer, votes=votes, cut_by=state.cut_by, unboxed=unboxed
        )
        return replace(state, tree=tree, phase=Phase.DONE), (finish,)

    def take_checkpoints(self, state: ProbedState) -> ProbedState:
        """Take none at the end, since each probe has had its own."""
        return state

    def find_cap(self, limits: Limits) -> int:
        """Most probes that a chain can have."""
        return max(1, limits.max_path_tokens // max(1, self.probe_tokens))

    def _judge_probe(self, state: ProbedState) -> ProbedState:
        """Take a checkpoint of the newest probe, and set `cut_by` if it ends the chain."""
        checkpoint = self._take_checkpoint(state)
        state = replace(state, history=(*state.history, checkpoint))
        if self.policy is None:
            return state
        if checkpoint.progress >= state.ask_at:
            asked = (*state.asked, checkpoint)
            allotment = self.policy.allot(asked, self.find_cap(state.limits))
            if allotment.more <= 0:
                return replace(state, asked=asked, cut_by=str(allotment.reason))
            state = replace(state, asked=asked, ask_at=checkpoint.progress + allotment.more)
        after = self.give_up_after
        if after and is_unsettled(state.answers, after=after, below=self.give_up_below):
            return replace(state, cut_by=str(Reason.NON_CONVERGENCE))
        return state

    def _take_checkpoint(self, state: ProbedState) -> Checkpoint:
        answers, measures = state.answers, {}
        if (agreed := measure_consistency(answers, self.window)) is not None:
            measures[CONSISTENCY] = agreed
        if self.tv_epsilon > 0:
            groups = max(1, len(set(answers) - {None}))
            k = count_needed_probes(epsilon=self.tv_epsilon, delta=self.tv_delta, num_groups=groups)
            measures[TV] = float(has_settled(answers, k, epsilon=self.tv_epsilon))
        return Checkpoint(
            progress=len(answers),
            tokens=state.tree.committed_tokens,
            answers=sum(a is not None for a in answers),
            measures=measures,
            answer=self._answer_at(state),
        )

    def _answer_at(self, state: ProbedState) -> str | None:
        """The answer if the chain were stopped here. Once it has ended, its own answer is preferred
        to that of the probes."""
        leaf = state.tree[state.leaf]
        probed = pick_settled_answer(state.answers, self.window)
        ended = leaf.status is NodeStatus.GENERATED and self.ends_path(state, leaf.id)
        if probed is not None and not ended:  # else the whole chain is read again at each probe
            return probed
        return extract_answer(state.tree.path_text(state.leaf)) or probed


def read_probe(suffix: str, text: str) -> tuple[str | None, int]:
    """The answer in the box that `suffix` opened, or in the first that closes, and where in `text`
    it ends. Linear in the text's length: an answer of more braces ends with the text."""
    ends = (*(found.end() for found in islice(re.finditer("}", text), _MAX_BRACES)), len(text))
    read = ((extract_answer(suffix + text[:end]), end) for end in ends)
    return next((found for found in read if found[0] is not None), (None, len(text)))

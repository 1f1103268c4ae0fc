"""One chain of thought with probes: it ends once the probes agree on an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, assert_never

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer
from flashedge.answers.pairwise import group_by_first_match
from flashedge.certainty.measures import (
    CONSISTENCY,
    TV,
    Checkpoint,
    History,
    consistency,
    has_settled,
    hesitates,
    is_unsettled,
    min_probes,
    pick_settled_answer,
)
from flashedge.certainty.policies import Policy, Reason
from flashedge.search.base import (
    Child,
    Cluster,
    Clustered,
    Command,
    Expand,
    Finish,
    Generated,
    Lookahead,
    Probe,
    ProbeResult,
    Reached,
    Result,
    Scored,
)
from flashedge.search.tree import ROOT, NodeStatus, Tree, mix64
from flashedge.search.voting import BUDGET, NOTHING, Phase, VotingState
from flashedge.types import Granularity, Judges, Limits, NodeId, Problem, Vote

SUFFIX = "\n\nOh, I suddenly got the answer to the whole problem. Final Answer: \\boxed{"
_PROBE = 1 << 32  # a seed index that no child has


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedState(VotingState):
    leaf: NodeId = ROOT
    probe: NodeId | None = None
    """The node whose probe is running."""
    answers: tuple[str | None, ...] = ()
    """(num_probes,) the first member of each answer's group. None: no answer, or a doubtful one."""
    asked: History = ()
    """The checkpoints at which the policy was asked. The history has one for each probe."""


Move = tuple[ProbedState, tuple[Command, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCot:
    """Chain of thought with probe-in-the-middle.

    The chain is child 0 of child 0 …, which keeps the root's noise, so its tokens are those of a
    chain without probes. A node's segment and the probe before it form one level: the search waits
    for both. Ref: arXiv 2412.20993 §2.1, App. E. Departures: probed answers are compared without
    mathematics (`decide_equal`); a chain that ends without a box takes the answer of its last
    probes; a chain that ends in a level does so whatever its probe says.
    """

    name: ClassVar[str] = "probed_cot"
    n: ClassVar[int] = 1
    judges: ClassVar[Judges] = "steps"
    scores_levels: ClassVar[bool] = False
    probe_tokens: int = 64
    """T: a probe after every T tokens of the chain. 0 disables probes."""
    suffix: str = SUFFIX
    max_probe_tokens: int = 32
    window: int = 3
    """w of the consistency C_k."""
    policy: Policy | None = None
    """When C_k ends the chain. Its progress counts probes."""
    give_up_after: int = 0
    """Probes after which an unsettled chain ends; 0 never. See `is_unsettled`."""
    give_up_below: float = 0.3
    beside: bool = True
    """Generate the next segment while the probe runs, so an exit wastes up to T tokens."""
    tv_epsilon: float = 0.0
    """Above 0, the rule of App. E is measured too. See `measures.has_settled`."""
    tv_delta: float = 0.05

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        ask_at = 1 if self.policy is None else self.policy.allot((), self.cap(limits)).more
        return self._expand(ProbedState(tree=Tree.from_seed(seed), limits=limits, ask_at=ask_at))

    def tell(self, state: ProbedState, result: Result) -> Move:
        match result:
            case Generated(node=node, segment=segment):
                at = state.tree.nodes.get(node)
                if at is None or at.status is not NodeStatus.GENERATING:
                    return state, ()
                return self._decide(replace(state, tree=state.tree.add_segment(node, segment)))
            case ProbeResult(node=node, text=text):
                return self._receive_probe(state, node, text)
            case Clustered():
                return self._receive_clusters(state, result)
            case Scored() | Reached():
                return state, ()
            case _:
                assert_never(result)

    def conclude(self, state: ProbedState) -> Move:
        if state.phase is Phase.DONE:
            return state, ()
        if state.phase is Phase.CLUSTER:
            return state, (Cluster(nodes=(state.leaf,)),)
        leaf = state.tree[state.leaf]
        if leaf.status is NodeStatus.GENERATING:
            tree = state.tree.mark({leaf.id: NodeStatus.CANCELLED})
            assert leaf.parent is not None, "the root is not generated"
            state = replace(state, tree=tree, leaf=leaf.parent)
        elif leaf.status is NodeStatus.GENERATED:
            to = NodeStatus.COMPLETE if self._ends(state) else NodeStatus.ACTIVE
            state = replace(state, tree=state.tree.mark({leaf.id: to}))
        state = replace(state, probe=None)
        if state.leaf == ROOT:
            done = replace(state, phase=Phase.DONE)
            return done, (Finish(choice=ROOT, answer=None, votes=()),)
        return self._group_answer(state)

    def lookahead(self, state: ProbedState, node: NodeId) -> Lookahead:
        at = state.tree[node]
        family = state.tree.children(node)
        over = state.phase is not Phase.GENERATE or node != state.leaf or state.is_over_budget
        if not family and (over or (at.segment is not None and self._ends(state))):
            return Lookahead(granularity=NOTHING, seeds=())
        above = replace(state, leaf=node)
        if at.status is NodeStatus.GENERATING and at.parent is not None:
            above = replace(state, leaf=at.parent)
        return Lookahead(granularity=self._granularity(above), seeds=(at.seed,))

    # ------------------------------------------------------------ inner

    def _receive_probe(self, state: ProbedState, node: NodeId, text: str) -> Move:
        if state.probe is None or state.probe != node:
            return state, ()
        answer = None if hesitates(text) else extract_answer(self.suffix + text)
        answers = group_by_first_match(
            (*state.answers, answer), lambda a, b: decide_equal(a, b) is True
        )
        return self._decide(replace(state, probe=None, answers=answers))

    def _decide(self, state: ProbedState) -> Move:
        """Continue once the newest segment and the probe before it have both arrived."""
        leaf = state.tree[state.leaf]
        if state.probe is not None or leaf.status is NodeStatus.GENERATING:
            return state, ()
        if len(state.answers) > len(state.history):
            state = self._judge_probe(state)
        generated = leaf.status is NodeStatus.GENERATED
        ended = generated and self._ends(state)
        if generated:
            to = NodeStatus.COMPLETE if ended else NodeStatus.ACTIVE
            state = replace(state, tree=state.tree.mark({leaf.id: to}))
        if ended:
            return self._group_answer(replace(state, cut_by=None))
        if state.is_over_budget and state.cut_by is None:
            state = replace(state, cut_by=BUDGET)
        if state.cut_by is not None:
            return self._group_answer(state)
        if not generated:  # the chain waited for the probe
            return self._expand(state)
        return self._probe(state)

    def _probe(self, state: ProbedState) -> Move:
        leaf = state.tree[state.leaf]
        probe = Probe(
            node=leaf.id,
            seed=mix64(leaf.seed, leaf.depth, _PROBE),
            suffix=self.suffix,
            max_tokens=self.max_probe_tokens,
        )
        state = replace(state, probe=leaf.id)
        if not self.beside:
            return state, (probe,)
        state, commands = self._expand(state)
        return state, (probe, *commands)

    def _expand(self, state: ProbedState) -> Move:
        bound = self._granularity(state)
        tree, (node,) = state.tree.expand(state.leaf, 1)
        child = Child(node=node.id, seed=node.seed)
        command = Expand(parent=state.leaf, children=(child,), granularity=bound)
        return replace(state, tree=tree, leaf=node.id), (command,)

    def _group_answer(self, state: ProbedState) -> Move:
        return replace(state, phase=Phase.CLUSTER), (Cluster(nodes=(state.leaf,)),)

    def _receive_clusters(self, state: ProbedState, result: Clustered) -> Move:
        if state.phase is not Phase.CLUSTER or result.answers.keys() != {state.leaf}:
            return state, ()
        own, probed = result.answers[state.leaf], pick_settled_answer(state.answers, self.window)
        stopped = state.cut_by in (Reason.CERTAINTY, Reason.NON_CONVERGENCE)
        answer = (probed or own) if stopped or result.is_unboxed else (own or probed)
        tree = state.tree.set_answers({state.leaf: answer})
        votes = () if answer is None else (Vote(answer=answer, weight=1.0, count=1),)
        unboxed = result.is_unboxed and probed is None
        finish = Finish(
            choice=state.leaf, answer=answer, votes=votes, cut_by=state.cut_by, unboxed=unboxed
        )
        return replace(state, tree=tree, phase=Phase.DONE), (finish,)

    # ------------------------------------------------------------ measures

    def _granularity(self, state: ProbedState) -> Granularity:
        room = state.remaining_tokens(state.leaf)
        tokens = min(self.probe_tokens, room) if self.probe_tokens else room
        return Granularity(max_tokens=tokens, to_end=True)

    def _ends(self, state: ProbedState) -> bool:
        segment = state.tree[state.leaf].segment
        stopped = segment is not None and segment.finish.ends_path
        return stopped or state.remaining_tokens(state.leaf) == 0

    def cap(self, limits: Limits) -> int:
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
            allotment = self.policy.allot(asked, self.cap(state.limits))
            if allotment.more <= 0:
                return replace(state, asked=asked, cut_by=str(allotment.reason))
            state = replace(state, asked=asked, ask_at=checkpoint.progress + allotment.more)
        after = self.give_up_after
        if after and is_unsettled(state.answers, after=after, below=self.give_up_below):
            return replace(state, cut_by=str(Reason.NON_CONVERGENCE))
        return state

    def _take_checkpoint(self, state: ProbedState) -> Checkpoint:
        answers, measures = state.answers, {}
        if (agreed := consistency(answers, self.window)) is not None:
            measures[CONSISTENCY] = agreed
        if self.tv_epsilon > 0:
            groups = max(1, len(set(answers)))
            k = min_probes(epsilon=self.tv_epsilon, delta=self.tv_delta, num_groups=groups)
            measures[TV] = float(has_settled(answers, k, epsilon=self.tv_epsilon))
        return Checkpoint(
            progress=len(answers),
            tokens=state.tree.committed_tokens,
            answers=sum(a is not None for a in answers),
            measures=measures,
            answer=self._answer_at(state),
        )

    def _answer_at(self, state: ProbedState) -> str | None:
        """The answer if the chain ended here. A chain that has ended prefers its own answer."""
        leaf = state.tree[state.leaf]
        probed = pick_settled_answer(state.answers, self.window)
        ended = leaf.status is NodeStatus.GENERATED and self._ends(state)
        if probed is not None and not ended:  # else the whole chain is read again at each probe
            return probed
        return extract_answer(state.tree.path_text(state.leaf)) or probed

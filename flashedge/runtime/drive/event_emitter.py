"""Turns what happens in a search into the run's events."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import assert_never

from flashedge import events
from flashedge.answers.extraction import extract_answer
from flashedge.search.aggregates import aggregate
from flashedge.search.base import (
    Cancel,
    Clustered,
    Command,
    Expand,
    Generated,
    ProbeResult,
    Reached,
    Result,
    Scored,
)
from flashedge.search.mcts.rollouts import Allowance, MctsState
from flashedge.search.tree import NodeStatus, Tree
from flashedge.search.voting import SearchState
from flashedge.types import NodeId

SHOWN = frozenset(NodeStatus) - {NodeStatus.GENERATING, NodeStatus.GENERATED}
"""Statuses that NodesMarked reports. NodesExpanded and StepCompleted report the other two."""


class EventEmitter:
    """Emits the events of a search. It remembers what it has emitted, so that nothing comes
    twice."""

    def __init__(
        self,
        emit: Callable[[events.Event], None],
        aggregate: str,
        take_answer: Callable[[tuple[str, ...]], tuple[str, ...]],
    ) -> None:
        """take_answer: returns the steps of a path's answer, without the model's thinking."""
        self._emit = emit
        self._aggregate = aggregate
        self._take_answer = take_answer
        self._tree = Tree()
        self._num_checkpoints = self._num_rollouts = self._num_futile = 0
        self._has_several = self._has_read_prompt = False
        self._flying: set[int] = set()

    def emit_turn(self, result: Result | Allowance, before: SearchState, now: SearchState) -> None:
        """Emit a result that changed the search from `before` to `now`, and the rollouts and
        checkpoints that it added."""
        self._emit_result(result, before, now.tree)
        if isinstance(now, MctsState):
            self._emit_rollouts(now)
        for checkpoint in now.history[self._num_checkpoints :]:
            self._emit(
                events.CertaintyUpdated(certainty=checkpoint.certainty, **asdict(checkpoint))
            )
        self._num_checkpoints = len(now.history)

    def _emit_result(self, result: Result | Allowance, before: SearchState, tree: Tree) -> None:
        match result:
            case Generated(node=node, segment=segment):
                answer = None
                if segment.finish.ends_path:
                    answer = extract_answer("".join(self._take_answer(tree.path_steps(node))))
                self._emit(
                    events.StepCompleted(
                        node=node,
                        token_ids=segment.token_ids,
                        logprobs=segment.logprobs,
                        text=segment.text,
                        steps=segment.steps,
                        finish=segment.finish,
                        answer=answer,
                        confidences=segment.confidences,
                    )
                )
            case Scored(node=node, scores=scores):
                score = aggregate(tree.path_scores(node), self._aggregate)
                self._emit(events.NodeScored(node=node, scores=scores, score=score))
            case Allowance(rollouts=rollouts, of=of):
                turn = before.turn if isinstance(before, MctsState) else 0
                self._emit(events.RolloutsAllowed(turn=turn, rollouts=rollouts, of=of))
            case Clustered() | ProbeResult() | Reached():
                pass
            case _:
                assert_never(result)

    def _emit_rollouts(self, state: MctsState) -> None:
        """Emit the rollouts that ended or were cut. Once several have been in flight, also emit
        which ones are now, if that changed."""
        nodes, futile = state.rollouts[self._num_rollouts :], state.num_futile - self._num_futile
        if nodes or futile:
            self._emit(events.RolloutsEnded(nodes=nodes, futile=futile))
            self._num_rollouts, self._num_futile = len(state.rollouts), state.num_futile
        flights = state.flights
        self._has_several |= len(flights) > 1
        numbers = {flight.number for flight in flights}
        if self._has_several and numbers != self._flying:
            self._flying = numbers
            pairs = tuple((flight.number, flight.node) for flight in flights)
            self._emit(events.RolloutsInFlight(flights=pairs, cancelled=state.num_cancelled))

    def emit_statuses(self, tree: Tree, commands: Sequence[Command]) -> None:
        """Emit the statuses that changed since the last call. Nodes that `commands` cancel wait for
        `emit_cancelled`, since the same commands may expand them first."""
        later = {node for c in commands if isinstance(c, Cancel) for node in c.nodes}
        changed: dict[NodeStatus, list[NodeId]] = {}
        known = self._tree.nodes
        for node in tree.nodes.list_changed(known):
            has_changed = node.id not in known or known[node.id].status != node.status
            if node.status in SHOWN and has_changed and node.id not in later:
                changed.setdefault(node.status, []).append(node.id)
        for status, nodes in changed.items():
            self._emit(events.NodesMarked(status=status, nodes=tuple(nodes)))
        self._tree = tree

    def emit_expansion(self, tree: Tree, command: Expand) -> None:
        children = [tree[child.node] for child in command.children]
        self._emit(
            events.NodesExpanded(
                parent=command.parent,
                depth=children[0].depth,
                children=tuple((n.id, n.index, n.seed) for n in children),
            )
        )

    def emit_cancelled(self, command: Cancel) -> None:
        self._emit(events.NodesMarked(status=NodeStatus.CANCELLED, nodes=command.nodes))

    def emit_prompt(self, tokens: int, cached_tokens: int) -> None:
        """Emit what the run's first request found in the prefix cache."""
        if not self._has_read_prompt:
            self._has_read_prompt = True
            self._emit(events.PromptRead(tokens=tokens, cached_tokens=min(tokens, cached_tokens)))

"""What the events say of a path."""

from __future__ import annotations

import pytest

from flashedge.events import Event, StepCompleted
from flashedge.runtime.drive.event_emitter import EventEmitter
from flashedge.search.base import Generated
from flashedge.search.steps import split_steps
from flashedge.search.tree import ROOT, Tree
from flashedge.types import FinishReason, Segment
from tests.unit.runtime.test_thinking import CLOSED


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\nIs it \\boxed{1}?\n</think>\n\nIt is \\boxed{3}.", "3"),
        ("<think>\nIs it \\boxed{1}?\n</think>\n\nI can't say.", None),
    ],
)
def test_a_box_in_the_thinking_is_no_answer(text: str, answer: str | None) -> None:
    emitted: list[Event] = []
    tree, (node,) = Tree.from_seed(1).expand(ROOT, 1)
    segment = Segment(
        token_ids=(1,),
        logprobs=(0.0,),
        text=text,
        steps=split_steps(text),
        finish=FinishReason.STOP,
    )
    emitter = EventEmitter(emitted.append, "last", CLOSED.take_answer)
    emitter.emit_result(
        Generated(node=node.id, segment=segment), tree.add_segment(node.id, segment), turn=0
    )
    (event,) = emitted
    assert isinstance(event, StepCompleted)
    assert event.answer == answer

"""Chains that solve a task: the teacher's, ones with faults, and the exact check of each step."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scripts.train_pair.checker import StepCheck, check_step, count_shared
from scripts.train_pair.families.base import State
from scripts.train_pair.families.story import THINGS
from scripts.train_pair.faults import SLIPS, make_faulty_step
from scripts.train_pair.problems import create_state, is_worked_out, read_step, render_step
from scripts.train_pair.teacher import teach
from scripts.train_tools.tasks import (
    NUMBERS,
    TOOLS,
    Decision,
    Task,
    build_call,
    render_call,
    render_decision,
)

MISREADS_AT_MOST, MISREADS_MORE = 0.5, 0.04
"""How often the teacher reads the other condition, by the wording."""

MISTAKES = 0.06
"""How often the teacher's call has a wrong argument."""

_DECIDED = re.compile(r"(\d+) is .*: (\w+)\.")
CALL = "<tool_call>"


@dataclass(frozen=True, slots=True)
class TaskState:
    """What a partial solution has stated."""

    story: State
    tool: str | None = None
    """The tool that it decided to call."""

    is_over: bool = False


def create_task_state(task: Task) -> TaskState:
    return TaskState(create_state(task.spec))


def read_task_step(task: Task, state: TaskState, text: str) -> TaskState:
    """The state after a step."""
    if CALL in text:
        return replace(state, is_over=True)
    decided = _DECIDED.match(text)
    if decided is None:
        return replace(state, story=read_step(task.spec, state.story, text))
    story = replace(state.story, value=int(decided[1][:6]))
    return replace(state, story=story, tool=decided[2])


def render_task_step(task: Task, state: TaskState, *, worked: bool = False) -> str | None:
    """Write the right next step after what was stated. None if there is none."""
    value = state.story.value
    if not is_worked_out(task.spec, state.story):
        return render_step(task.spec, state.story, worked)
    if value is None:
        return None
    if state.tool is None:
        return render_decision(task.decision, value)
    if state.tool not in TOOLS:
        return None
    return render_call(build_call(task.decision, state.tool, value))


def check_task_steps(task: Task, steps: Sequence[str]) -> list[StepCheck]:
    """Check each step by what was stated before it. A step after the call is wrong."""
    state, checks, so_far = create_task_state(task), list[StepCheck](), True
    for text in steps:
        deviation = _find_deviation(task, state, text)
        so_far = so_far and deviation is None
        checks.append(StepCheck(deviation is None, so_far, deviation))
        state = read_task_step(task, state, text)
    return checks


def _find_deviation(task: Task, state: TaskState, text: str) -> int | None:
    if state.is_over:
        return 0
    if not is_worked_out(task.spec, state.story):
        return check_step(task.spec, state.story, text)
    allowed = render_task_step(task, state)
    if allowed is None:
        return 0
    return None if text == allowed else count_shared(text, allowed)


def read_call(text: str) -> Mapping[str, Any] | None:
    """The call that a text ends with, or None."""
    _, found, rest = text.rpartition(CALL)
    if not found:
        return None
    try:
        call = json.loads(rest.partition("</tool_call>")[0])
    except ValueError:
        return None
    return call if isinstance(call, dict) else None


def teach_task(rng: random.Random, task: Task) -> list[str]:
    """Write the teacher's solution: mostly right, with misconceptions about the story
    (`train_pair.teacher`) and about "at most"."""
    steps = teach(rng, task.spec)[:-1]  # the last one states an answer
    state = create_task_state(task)
    for text in steps:
        state = read_task_step(task, state, text)
    misreads = MISREADS_AT_MOST if task.decision.says_at_most else MISREADS_MORE
    value = state.story.value
    assert value is not None, "the teacher states a value every day"
    steps.append(render_decision(task.decision, value, is_misread=rng.random() < misreads))
    tool = read_task_step(task, state, steps[-1]).tool
    assert tool is not None
    call = build_call(task.decision, tool, value)
    steps.append(render_call(_spoil(rng, task.decision, call) if rng.random() < MISTAKES else call))
    return steps


def make_task_chain(rng: random.Random, task: Task, fault_rate: float) -> list[str]:
    """Make a chain whose steps are faulty with probability `fault_rate`."""
    state, steps = create_task_state(task), list[str]()
    while not state.is_over and len(steps) < 2 * len(task.spec.moves) + 4:
        text = _make_fault(rng, task, state) if rng.random() < fault_rate else None
        text = text or render_task_step(task, state, worked=rng.random() < 0.3)
        if text is None or "\\boxed" in text:
            break
        steps.append(text)
        state = read_task_step(task, state, text)
    return steps


def _make_fault(rng: random.Random, task: Task, state: TaskState) -> str | None:
    if not is_worked_out(task.spec, state.story):
        return make_faulty_step(rng, task.spec, state.story)
    value = state.story.value
    if value is None:
        return None
    if state.tool is None:
        near = max(0, value + rng.choice(SLIPS))
        return rng.choice(
            (
                render_decision(task.decision, value, is_misread=True),
                render_decision(task.decision, near),
                render_decision(replace(task.decision, limit=near), value),
                render_decision(task.decision, value).replace("is not", "is"),
            )
        )
    if state.tool not in TOOLS:
        return None
    return render_call(_spoil(rng, task.decision, build_call(task.decision, state.tool, value)))


def _spoil(rng: random.Random, decision: Decision, call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with one thing wrong, most likely."""
    arguments = dict(call["arguments"])
    if rng.random() < 0.15:
        name = rng.choice(list(TOOLS))
        return build_call(decision, name, arguments.get("count", decision.limit))
    field = rng.choice(list(arguments))
    if field in NUMBERS:
        arguments[field] = max(0, arguments[field] + rng.choice(SLIPS))
    else:
        arguments[field] = rng.choice(THINGS)
    return {"name": call["name"], "arguments": arguments}

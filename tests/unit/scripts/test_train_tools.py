"""Tasks whose right tool call is known, the exact check of their chains, and the trunk."""

import json
import random

import pytest

from scripts.train_pair.batches import IGNORE, Encoder
from scripts.train_tools.chains import (
    check_task_steps,
    create_task_state,
    make_task_chain,
    read_call,
    read_task_step,
    render_task_step,
    teach_task,
)
from scripts.train_tools.measure import Reply, is_valid, read_arguments, report
from scripts.train_tools.model import (
    encode_task,
    format_task,
    load_tokenizer,
    make_checked_chains,
    make_lessons,
)
from scripts.train_tools.tasks import (
    HELDOUT_SEEDS,
    TRAIN_SEEDS,
    Task,
    define_tool,
    make_task,
    make_tasks,
)
from tests.support.paths import ROOT

TASKS = make_tasks(TRAIN_SEEDS, 200)


def solve(task: Task) -> list[str]:
    state, steps = create_task_state(task), list[str]()
    while not state.is_over:
        text = render_task_step(task, state)
        assert text is not None
        steps.append(text)
        state = read_task_step(task, state, text)
    return steps


def test_the_stored_tasks_are_those_of_their_seeds() -> None:
    lines = (ROOT / "tests/data/tool_calls.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in lines]
    assert stored == [task.to_json() for task in make_tasks(HELDOUT_SEEDS, len(stored))]
    assert len(stored) >= 200


def test_a_task_names_two_of_its_tools_and_calls_one() -> None:
    for task in TASKS:
        asked = {task.decision.if_more, task.decision.otherwise}
        assert asked < set(task.tools)
        assert task.call["name"] in asked
        assert is_valid(as_reply(task.call), [define_tool(name) for name in task.tools])


def as_reply(call: object) -> dict[str, object]:
    assert isinstance(call, dict)
    arguments = json.dumps(call["arguments"])
    return {"function": {"name": call["name"], "arguments": arguments}}


def test_the_exact_solution_is_right_and_ends_in_the_right_call() -> None:
    for task in TASKS:
        steps = solve(task)
        assert all(check.so_far for check in check_task_steps(task, steps))
        assert read_call(steps[-1]) == task.call
        assert not check_task_steps(task, [*steps, steps[-1]])[-1].right  # nothing follows a call


def test_a_step_is_checked_by_what_was_stated_before_it() -> None:
    task = make_task(TRAIN_SEEDS[0])
    steps = solve(task)
    named = read_task_step(task, create_task_state(task), steps[-2]).tool
    other = next(n for n in ("sell", "store") if n != named)
    steps[-2] = f"{steps[-2].rpartition(' ')[0]} {other}."
    state = create_task_state(task)
    for text in steps[:-1]:
        state = read_task_step(task, state, text)
    follows = render_task_step(task, state)
    assert follows is not None
    assert other in follows
    checks = check_task_steps(task, [*steps[:-1], follows])
    assert [check.right for check in checks[-2:]] == [False, True]
    assert not checks[-1].so_far


def test_the_teacher_misreads_at_most_more_often() -> None:
    wrong: dict[bool, list[bool]] = {True: [], False: []}
    for index, task in enumerate(TASKS):
        steps = teach_task(random.Random(index), task)
        decided = check_task_steps(task, steps)[-2]
        wrong[task.decision.says_at_most].append(not decided.right)
    rates = {at_most: sum(found) / len(found) for at_most, found in wrong.items()}
    assert rates[True] > 0.3 > rates[False]


def test_chains_with_faults_have_wrong_steps_and_without_have_none() -> None:
    def is_right(task: Task, rate: float) -> bool:
        steps = make_task_chain(random.Random(task.id), task, rate)
        return all(check.right for check in check_task_steps(task, steps))

    assert all(is_right(task, 0.0) for task in TASKS)
    assert sum(is_right(task, 0.25) for task in TASKS) < len(TASKS) / 2


def test_the_template_writes_the_prompt_that_the_model_learnt() -> None:
    tokenizer = load_tokenizer()
    for task in TASKS[:20]:
        turns = [{"role": "user", "content": task.text}]
        tools = [define_tool(name) for name in task.tools]
        assert format_task(task) == tokenizer.apply_chat_template(
            turns, tools=tools, add_generation_prompt=True, tokenize=False
        )


def test_lessons_begin_with_the_prompt_and_chains_label_every_separator() -> None:
    encoder = Encoder(load_tokenizer())
    row = make_lessons(encoder, 0)(3)
    prompt = encode_task(encoder, make_task(TRAIN_SEEDS[3]))
    assert row.ids[: len(prompt)] == prompt
    assert row.ids[-1] == encoder.end
    assert row.target == [False] * len(prompt) + [True] * (len(row.ids) - len(prompt))
    for row in map(make_checked_chains(encoder, 0), range(20)):
        ends = [i for i, token in enumerate(row.ids) if token == encoder.separator]
        assert [i for i, label in enumerate(row.step) if label != IGNORE] == ends


@pytest.mark.parametrize(
    ("name", "arguments", "valid"),
    [
        ("store", {"item": "nuts", "count": 3}, True),
        ("store", {"item": "nuts", "count": "3"}, False),
        ("store", {"item": "nuts"}, False),
        ("burn", {"item": "nuts", "count": 3}, False),
    ],
)
def test_validity_is_that_of_the_schema(name: str, arguments: object, valid: bool) -> None:
    call = {"name": name, "arguments": arguments}
    assert is_valid(as_reply(call), [define_tool("store")]) is valid
    assert read_arguments(as_reply(call)) == call


def test_the_report_counts_paths_and_compares_task_by_task() -> None:
    both = (True, True)
    votes = [Reply(both, both, (True, False)), Reply(both, (True, False), (True, True))]
    judged = [Reply((True,), (True,), (True,)), Reply((False,), (True,), (False,))]
    found = report({"vote of 8": votes, "verifier of 8": judged})
    assert found["rows"]["one sample"]["right"]["percent"] == 75.0
    assert found["rows"]["vote of 8"]["gain"]["percent"] == 25.0
    assert found["rows"]["verifier of 8"]["right"]["percent"] == 50.0
    assert (found["paths"], found["paths with a call"]) == (6, 5)
    assert found["paths with an invalid call"] == 1

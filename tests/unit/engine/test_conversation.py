"""Conversations of agents, as the verifier sees them and without earlier notes."""

from typing import Any

from flashedge.engine.vllm.serving import conversation

CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}


def read(*turns: dict[str, Any]) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in conversation.build_problem(turns).messages]


def test_plain_turns_stay_and_other_clients_parts_and_roles_are_translated() -> None:
    roles = ("system", "user", "assistant", "user")
    assert read(*({"role": r, "content": r} for r in roles)) == [(r, r) for r in roles]
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, {"type": "image"}]
    turns = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    assert read(*turns) == [("system", "d"), ("user", "one\ntwo")]
    assert read({"role": "user", "content": None}) == [("user", "")]


def test_a_call_is_the_assistants_text_and_a_result_the_users() -> None:
    assert read(
        {"role": "user", "content": "3 + 4?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "name": "add", "content": "7"},
        {"role": "tool", "content": ""},
        {"role": "user", "content": "And?"},
    ) == [
        ("user", "3 + 4?"),
        ("assistant", "\n".join(['{"name": "add", "arguments": "{\\"a\\": 3}"}'] * 2)),
        ("user", "Result of the tool add: 7\n\nResult of the tool: (nothing)\n\nAnd?"),
    ]


def test_notes_of_a_search_are_dropped_and_a_models_thinking_is_not() -> None:
    said = f"{conversation.NOTES_BEGIN}[1] 3+4=7.\n[1] score 0.9\n"
    bare = {"role": "assistant", "content": "7"}
    notes = {**bare, "reasoning": said + conversation.NOTES_END}
    both = {**notes, "reasoning_content": said}  # a stream that was broken off
    thinking = {**bare, "reasoning": "[1] Smith (2020) says so."}
    mixed = {**bare, "reasoning": f"{said}{conversation.NOTES_END}I add."}
    found = conversation.drop_notes([notes, both, thinking, mixed, bare])
    assert found == [bare, bare, thinking, {**bare, "reasoning": "I add."}, bare]
    assert notes["reasoning"]


def test_what_follows_the_question_is_the_users_text() -> None:
    """A later instruction, and what the assistant said last."""
    assert read(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": "3 + 4?"},
        {"role": "system", "content": "There are agents."},
    ) == [("system", "Be brief.\n\nUse tools."), ("user", "3 + 4?\n\nThere are agents.")]
    turns = [{"role": "user", "content": "3 + 4?"}, {"role": "assistant", "content": "It is"}]
    assert read(*turns) == [("user", "3 + 4?\n\nIt is")]
    assert read(turns[1]) == [("assistant", "It is")]


def test_the_first_medium_is_found_wherever_it_stands() -> None:
    text = {"type": "text", "text": "an image"}
    for part, medium in (
        ({"type": "image_url", "image_url": {"url": "data:"}}, "image"),
        ({"type": "input_audio", "input_audio": {}}, "audio"),
        ({"type": "video_url"}, "video"),
    ):
        turns = [{"role": "user", "content": "image"}, {"role": "tool", "content": [text, part]}]
        assert conversation.find_medium(turns) == medium
    none = [{"content": [text, "image", {}]}, {"content": None}, {}]
    assert conversation.find_medium(none) is None


def test_parts_that_can_be_read_once_become_lists() -> None:
    part = {"type": "text", "text": "x"}
    turns = [{"role": "user", "content": iter([part])}, {"content": "x"}, None]
    assert conversation.list_parts(turns) == [{**turns[0], "content": [part]}, *turns[1:]]


def test_later_instructions_keep_their_place() -> None:
    """In front they would change the head of the prompt in each turn."""
    user, assistant = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    rules: dict[str, Any] = {"role": "system", "content": "rules"}
    late = {"role": "system", "content": "late", "name": "n"}
    turned = {"role": "user", "content": "late", "name": "n"}
    parts = {"role": "developer", "content": [{"type": "text", "text": "more"}]}
    for given, expected in (
        ([], []),
        ([user, "odd"], [user, "odd"]),
        ([rules, user], [rules, user]),
        ([rules, user, late, assistant, user], [rules, user, turned, assistant, user]),
        ([user, late], [user, turned]),
        ([user, parts], [user, {**parts, "role": "user"}]),
        ([rules, parts, user], [{"role": "system", "content": "rules\n\nmore"}, user]),
        ([parts, user], [parts, user]),
    ):
        assert conversation.gather_instructions(given) == expected
    first = [rules, user, late]
    turns = (first, [*first, assistant, user, late])
    before, after = map(conversation.gather_instructions, turns)
    assert after[: len(first)] == before, "a turn only adds to the prompt"

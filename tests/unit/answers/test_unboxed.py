"""Answers that paths name without a box, and that they count only where no path has one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flashedge.answers.extraction import MAX_LENGTH, find_named_answer
from flashedge.answers.grouping import WordGroups, group_answers
from flashedge.answers.spelling import normalize
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.types import NodeId


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So 2 + 2.\n**Answer:** 4.", "4"),
        ("**Answer: 4**", "4"),
        ("**Final Answer**\n\n$$4$$", "4"),
        ("### Answer\n4", "4"),
        ("> - *Answer:* 4\n\nLet me know if you need more.", "4"),
        ("work\n#### 1,234\n", "1234"),
        ("#### \\frac{1}{2}", "1/2"),
        ("#### Step 3: add\nnothing", None),
        ("#### 3. Add\nnothing", None),
        ("The final answer is 5.", "5"),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "5"),
        ("The answer is 3.5 because 7 / 2 = 3.5.", "3.5"),
        ("The answer is 3 or 5.", "\\{3,5\\}"),
        ("the correct answer is (C) 5.", "C"),
        ("The answer is 4. Wait, no: the answer is 5.", "5"),
        ("The answer is not 5.", None),
        ("No answer here. Is the answer right?", None),
        ("So 2 + 2. **Answer:** 4.", "4"),
        ("So 2 + 2 is 4. Final answer: 4", "4"),
        ("The answer is 3. Wait, 2 + 2. **Answer: 4**", "4"),
        ("The correct option is (B).", "B"),
        ("**Correct choice:** B", "B"),
        ("The best option is B.", None),
        ("It may answer: 5", None),
        ("Answer:", None),
        ("<answer>42</answer>", "42"),
        ("<ANSWER> x < 5 </ANSWER>\nAnswer: 7", "x<5"),
        ("<think>Answer: 3</think><answer>42", "42"),
        ("<answer></answer>", None),
        ("so \\boxed{42", None),
        ("The final answer is \\(\\boxed{42", None),
        ("**Final answer:**\n\\[\n42\n\\]", "42"),
        ("Answer:\n42", "42"),
        ("The answer is yes.", "yes"),
        ("Let's check that our answer is accurate.", None),
        ("The answer is negative, so none.", None),
        ("**Answer:**\nThe total is:\n", None),
        ("# Final answer\nprint(total)", None),
        ("\\boxed{", None),
        ("Answer: " + "x" * (MAX_LENGTH + 1), None),
        ("", None),
    ],
)
def test_find_named_answer(text: str, answer: str | None) -> None:
    found = find_named_answer(text)
    assert (found and normalize(found)) == answer


async def group(*texts: str) -> tuple[list[str | None], bool]:
    paths = {NodeId(i): (text,) for i, text in enumerate(texts)}
    found = await group_answers(paths, "boxed", MathGrader(), WordGroups())
    return [found.answers[node] for node in paths], found.is_unboxed


async def test_named_answers_count_where_no_path_has_a_box() -> None:
    texts = "#### 4", "**Answer:** 4.0", "none", "The answer is 5."
    assert await group(*texts) == (["4", "4", None, "5"], True)
    assert await group(*texts, "\\boxed{7}") == ([None, None, None, None, "7"], False)
    assert await group(*texts, "\\boxed{}") == (["4", "4", None, "5", None], True)
    assert await group("none", "") == ([None, None], False)


async def test_other_kinds_of_answers_know_no_boxes() -> None:
    paths: Mapping[NodeId, tuple[str, ...]] = {NodeId(1): ("Answer: 4",)}
    for kind in ("text", "whole", "json"):
        found = await group_answers(paths, kind, MathGrader(), WordGroups())
        assert (found.answers[NodeId(1)], found.is_unboxed) == ("Answer: 4", False)

"""Finding, normalizing and counting answers, one spelling for equal JSON; names of strategies."""

import json
from typing import Any

import pytest

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import MAX_LENGTH, extract_answer, find_named_answer
from flashedge.answers.grouping import WordGroups, group_answers
from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize
from flashedge.answers.structured import find_calls, list_call_marks, write_canonically
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.errors import NotFound
from flashedge.search.catalog import make_search, parse_strategy
from flashedge.search.strategies.beam import BeamSearch
from flashedge.search.strategies.best_of_n import BestOfN
from flashedge.search.voting import count_votes
from flashedge.types import Vote


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("5", r"So \boxed{5}.|\boxed{3}\boxed{5}|x = \boxed{3}, so y = \boxed{5}|\boxed 5."),
        ("5", r"\boxed{3}, y = \boxed{5}|\boxed{5}. Wait, \boxed{}|\boxed{5} and \boxed{\text{ }}"),
        ("5", r"\boxed{5}, as asked in \boxed{\ldots}"),
        ("2", r"\boxed{1} then \boxed{2}"),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}|\framebox[3em][c]{\frac{1}{2}}"),
        ("7", r"\boxed {7}|\fbox{7}|\boxed{3}, wait, \boxed{7}"),
        ("3", r"\boxed{\boxed{3}}"),
        (r"\{1, 2\}", r"\boxed{\{1, 2\}}"),
        (r"\left\{x\right.", r"\boxed{\left\{x\right.}"),
        ("3,5,7", r"The roots are \boxed{3}, \boxed{5} and \boxed{7}."),
        (
            "3,5",
            r"$\boxed{3}$ or $\boxed{5}$|\boxed{\boxed{3}, \boxed{5}}|x = \boxed{3}, \boxed{5}",
        ),
        ("3,5", r"x = \boxed{3} or x = \boxed{5}"),
        (r"\{2,300\}", r"\boxed{2} and \boxed{300}"),
        ("A,C", r"\(\boxed{A}\) \text{ and } \(\boxed{C}\)"),
        ("0.5", r"\boxed{0.5} or \boxed{\frac{1}{2}}"),
        ("4", r"\boxed{4} and \boxed{5"),
        ("1", r"\boxed{1}. Check: yes, \boxed{1}"),
        ("x=3,y=5", r"x = \boxed{3}, y = \boxed{5}"),
        ("x_1=3,x_2=3", r"$x_1=\boxed{3}$ and \(x_2 = \boxed{3}\)"),
        ("-", r"\boxed{-}"),
        ("42", r"\framebox{42}|\Boxed{42}|<answer>\boxed{42}</answer>"),
        ("-1,234.5", r"\boxed -1,234.5"),
        ("a_{1}^{2}", r"\boxed{a_{1}^{2}}"),
        (None, r"\boxed{5|\boxed{}|\boxed{ }|write it as \boxed text|5|"),
    ],
)
def test_extract_answer(answer: str | None, texts: str) -> None:
    found = {text: extract_answer(text) for text in texts.split("|")}
    assert found == dict.fromkeys(found, answer)


@pytest.mark.parametrize(
    ("form", "spellings"),
    [
        ("5", "5|$5$| 5 .|5.0|05|+5|{5}|\\(5\\)|$$5$$|x = 5|5\\text{ cm}|5 cm^2"),
        ("5", "5\\ \\text{apples}"),
        ("5", "5 apples|5^\\circ|5^{\\circ}|5\\%|\\$5|$5|5.|005.00|\\text{5}|5\\,\\text{m}^{2}"),
        ("1/2", "1/2|\\frac12|\\frac{1}{2}|\\dfrac{1}{2}|\\tfrac1{2}|\\frac 1 2"),
        ("-1/2", "-1/2|-\\frac12|\\frac{-1}{2}|-\\dfrac{1}{2}|\\frac{-1}2"),
        ("0.5", ".5|0.5|0.50|00.5"),
        ("12000", "12,000 dollars|\\$12,000|12000"),
        ("0", "0|-0|0.0|00"),
        ("(1,2)", "(1,2)|\\left( 1, 2 \\right)|( 1 , 2 )|(1,\\ 2)"),
        ("(3,1000)", "(3,1000)"),
        ("(1,234)", "(1,234)"),
        ("2\\sqrt{3(x+1)}", "2\\sqrt{3(x+1)}|2sqrt(3(x+1))|2 \\sqrt (3(x+1))"),
        ("a^{\\sqrt{2}}", "a^{\\sqrt{2}}|a^sqrt(2)"),
        ("\\sin x", "\\sin x|sin x|\\text{sin} x|\\operatorname{sin} x"),
        ("(0,\\infty)", "(0,\\infty)|(0, infinity)|(0, ∞)"),
        ("30", "30 sec|30 seconds"),
        ("log in", "log in|Log in"),
        ("tan and white", "tan and white|Tan and White"),
        ("spin", "spin|Spin"),
        ("(b)", "(b)|( b )|b)|(b).|\\text{(b)}|(b) 5 apples|b) 5|Option (b)"),
        ("b:5", "b: 5"),
        ("x^2+2x+1", "x^2 + 2x + 1|x^2+2 x+1|y = x^2+2x+1"),
        ("-\\frac{3}{4}x", "-\\frac34x|-\\frac{3}{4}x"),
        ("monday", "Monday|\\text{Monday}|\\textbf{monday}|MONDAY."),
        ("A", "A|\\text{A}"),
        ("6000000", "6 million|6\\text{ million}|\\$6 million dollars|six million|6,000 thousand"),
        ("\\{2,3\\}", "2\\text{ or }3|2 or 3|2, 3|2 and 3|x = 2 or x = 3|x=2, x=3"),
        ("\\{2,300\\}", "2, 300|2 or 300"),
        ("x>2 or x<-1", "x > 2 or x < -1"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        # what may be a product is no mixed number
        *((same, same) for same in ("12\\frac{3}{5}x", "2\\frac{5}{3}", "x^2\\frac{1}{2}")),
        *((same, same) for same in ("3-2\\frac{1}{2}", "2\\frac{1}{2}\\pi")),
    ],
)
def test_normalize(form: str, spellings: str) -> None:
    given = {s: normalize(s) for s in spellings.split("|")}
    assert given == dict.fromkeys(given, form)


@pytest.mark.parametrize(
    "text", ["{" * 900, "\\text{" * 150, "$" * 999, "1," * 400, "\\frac1" * 160]
)
@pytest.mark.timeout(60)  # a pattern that backtracks takes for ever
def test_normalize_ends_on_nonsense(text: str) -> None:
    assert normalize(text) is not None


def test_normalize_leaves_overlong_answers_alone() -> None:
    assert normalize(" " + "1,000" * 1000) == "1,000" * 1000
    first, second = (f"{letter}) {'text ' * 200}" for letter in "bc")
    assert decide_equal(first, second) is False, "their letters alone do not count"


@pytest.mark.parametrize(
    ("pairs", "equal"),
    [
        ("1/0|1  (b)|b  x+1|1+x  5|\\sqrt{25}", None),
        ("5|6  0.1|0.10001  1/3|0.333  yes|no way  (b)|C  b|B  (a) x|A  monday|sunday", False),
        ("12\\frac{3}{5}|36/5", False),
        ("|", True),
    ],
)
def test_decide_equal(pairs: str, equal: bool | None) -> None:
    for pair in pairs.split("  "):
        a, b = pair.split("|")
        assert decide_equal(a, b) is decide_equal(b, a) is equal, pair


def test_parse_number_never_meets_pythons_digit_limit() -> None:
    assert parse_number("9" * 5000) is None
    assert decide_equal("9" * 5000, "8" * 5000) is None


def test_count_votes() -> None:
    ballots = [("7", 0.2), (None, 0.9), ("8", 0.5), ("7", 0.2)]
    seven, eight = Vote(answer="7", weight=0.4, count=2), Vote(answer="8", weight=0.5, count=1)
    assert count_votes(ballots) == (eight, seven)
    assert count_votes(ballots, "majority") == (seven, eight)
    assert count_votes([]) == count_votes([(None, 1.0)]) == ()
    assert [v.answer for v in count_votes([("b", 0.3), ("a", 0.3)])] == ["b", "a"], "the earlier"


def test_strategies_are_found_by_name() -> None:
    assert parse_strategy("beam-16") == ("beam", 16)
    assert parse_strategy("beam") == ("beam", None)
    assert parse_strategy("best_of_n-4") == parse_strategy("best-of-n-4") == ("best_of_n", 4)
    options = {"branching": 2, "max_step_tokens": 9, "max_steps": 3}
    common = {"n": 3, "aggregate": "min", "selection": "best"}
    assert make_search("beam", **common, **options) == BeamSearch(**common, **options)
    assert make_search("best_of_n", **common, **options) == BestOfN(**common)


@pytest.mark.parametrize("name", ["bem", "beam-", "beam-x", "beam--4", "", "-4", "beam-1234567890"])
def test_unknown_strategy_names_the_known(name: str) -> None:
    with pytest.raises(NotFound, match="beam, best_of_n") as error:
        parse_strategy(name)
    assert error.value.param == "strategy"


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("4", "So 2 + 2.\n**Answer:** 4.|**Answer: 4**|**Final Answer**\n\n$$4$$|### Answer\n4"),
        ("4", "> - *Answer:* 4\n\nLet me know if you need more.|So 2 + 2. **Answer:** 4."),
        ("4", "So 2 + 2 is 4. Final answer: 4|The answer is 3. Wait, 2 + 2. **Answer: 4**"),
        ("1234", "work\n#### 1,234\n"),
        ("1/2", "#### \\frac{1}{2}"),
        ("5", "The final answer is 5.|The answer is 4. Wait, no: the answer is 5."),
        ("5", "Final Answer: The final answer is $5$. I hope it is correct."),
        ("3.5", "The answer is 3.5 because 7 / 2 = 3.5."),
        ("\\{3,5\\}", "The answer is 3 or 5."),
        ("C", "the correct answer is (C) 5."),
        ("B", "The correct option is (B).|**Correct choice:** B"),
        ("yes", "The answer is yes."),
        ("x<5", "<ANSWER> x < 5 </ANSWER>\nAnswer: 7"),
        ("42", "<answer>42</answer>"),
        ("42", "<think>Answer: 3</think><answer>42|**Final answer:**\n\\[\n42\n\\]|Answer:\n42"),
        (None, "#### Step 3: add\nnothing|#### 3. Add\nnothing|The answer is not 5.|\\boxed{|"),
        (
            None,
            "No answer here. Is the answer right?|The best option is B.|It may answer: 5|Answer:",
        ),
        (None, "<answer></answer>|so \\boxed{42|The final answer is \\(\\boxed{42"),
        (None, "Let's check that our answer is accurate.|The answer is negative, so none."),
        (None, "**Answer:**\nThe total is:\n|# Final answer\nprint(total)"),
        (None, "Answer: " + "x" * (MAX_LENGTH + 1)),
    ],
)
def test_find_named_answer(answer: str | None, texts: str) -> None:
    named = {text: find_named_answer(text) for text in texts.split("|")}
    found = {text: name and normalize(name) for text, name in named.items()}
    assert found == dict.fromkeys(found, answer)


async def group(*texts: str) -> tuple[list[str | None], bool]:
    paths = {i: (text,) for i, text in enumerate(texts)}
    answers, is_unboxed = await group_answers(paths, "boxed", MathGrader(), WordGroups())
    return [answers[node] for node in paths], is_unboxed


async def test_named_answers_count_where_no_path_has_a_box() -> None:
    texts = "#### 4", "**Answer:** 4.0", "none", "The answer is 5."
    assert await group(*texts) == (["4", "4", None, "5"], True)
    assert await group(*texts, "\\boxed{7}") == ([None, None, None, None, "7"], False)
    assert await group(*texts, "\\boxed{}") == (["4", "4", None, "5", None], True)
    assert await group("none", "") == ([None, None], False)


async def test_other_kinds_of_answers_know_no_boxes() -> None:
    for kind in ("text", "whole", "json"):
        found = await group_answers({1: ("Answer: 4",)}, kind, MathGrader(), WordGroups())
        assert found == ({1: "Answer: 4"}, False)


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],\n "a":1}', True),
        ('<call>\n{"name": "add"}\n</call>', '<call> {"name":"add"} </call>', True),
        ("[ 1 ]", "[1]", True),
        ("two  words", " two words ", True),
        ('{"a": {"c": 1, "b": 2}}', '{"a": {"b": 2, "c": 1}}', True),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ('{"code": "  x"}', '{"code": "    x"}', False),
        ('{"a": 1', '{"a": 1}', False),
        ("a", "b", False),
    ],
)
def test_equal_answers_are_spelled_alike(first: str, second: str, equal: bool) -> None:
    assert (write_canonically(first) == write_canonically(second)) is equal


def test_a_blank_text_is_no_answer_and_broken_json_is_text() -> None:
    assert write_canonically(" \n") is None
    for broken in ('{"a": [1, {', "{" * 5000):
        assert write_canonically(broken) == broken


BEGIN = '<tool_call>\n{"name": "sell", "arguments": '
SCHEMA = {"type": "json_schema", "json_schema": {"begin": "no mark"}}
TAG = {"type": "tag", "begin": BEGIN, "content": SCHEMA, "end": "}\n</tool_call>"}
TAGS = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [TAG]}
AUTO = {"structural_tag": json.dumps({"format": TAGS})}


def call(reason: str, count: int, blank: str = " ") -> str:
    arguments = f'{{"count":{blank}{count}}}'
    return f'{reason}<tool_call>\n{{"name": "sell", "arguments": {arguments}}}\n</tool_call>'


def test_a_grammar_says_how_calls_begin_and_they_are_found_behind_reasoning() -> None:
    marks = list_call_marks(AUTO)
    assert marks == (BEGIN,)
    assert list_call_marks({"json": {}}) == list_call_marks(None) == ()
    assert find_calls(call("It is 46.\n\n", 46), marks) == call("", 46)
    assert find_calls("I call nothing.", marks) is None


async def test_paths_with_one_call_are_one_vote_whatever_their_reasoning() -> None:
    no_grader: Any = None  # nothing is boxed
    paths = {
        1: ("13+33=46.\n\n", call("", 46)),
        2: ("33+13=46.\n\n", call("", 46, blank="")),
        3: ("13+33=45.\n\n", call("", 45)),
        4: ("I need no tool.",),
    }
    marks = list_call_marks(AUTO)
    found, _ = await group_answers(paths, "json", no_grader, WordGroups(), marks)
    assert found[1] == found[2] != found[3]
    assert found[4] == "I need no tool."

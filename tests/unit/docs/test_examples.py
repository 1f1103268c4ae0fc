"""Every problem that is shown to users is found, and its right answer is known.

`tests/engine/test_daemon.py` lets the bundled pair solve them.
"""

import pytest

from tests.support.examples import ANSWERS, check_blocks, find_answer, find_problems, list_examples

SHOWN = sorted(set(list_examples()))
ASKED = "What is 3 + 4?"
DUCKS = "Janet's ducks lay 16 eggs. How many?"


@pytest.mark.parametrize(("place", "problem"), SHOWN)
def test_every_example_has_an_answer(place: str, problem: str) -> None:
    assert find_answer(place, problem).isdigit()


def test_every_answer_belongs_to_an_example() -> None:
    assert not set(ANSWERS) - {problem for _, problem in SHOWN}


def test_examples_are_found_where_they_stand() -> None:
    places = {"README.md", "docs/strategies.md", "scripts/quickstart.sh"}
    guide = ("solve", "determinism", "serve", "many-programs", "frameworks/langchain")
    places |= {f"docs/guide/{page}.md" for page in (*guide, "frameworks/smolagents")}
    places |= {
        f"flashedge/{name}.py" for name in ("cli/main", "cli/solve/command", "files/problems")
    }
    assert not places - {found for found, _ in SHOWN}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('flashedge solve "What is 3 + 4?" -n 16', {ASKED}),
        (f'flashedge solve "{DUCKS}"', {DUCKS}),
        ('flashedge solve "Compute 49-34+65."', {"Compute 49-34+65."}),
        ("flashedge chat 1+2", {"1+2"}),
        ('"prompt": "3 + 4 * 2"', {"3 + 4 * 2"}),
        ('curl -d \'{\n "messages": [{"content": "1 + 2"}]}\'', {"1 + 2"}),
        ('-d "{\\"problem\\": \\"What is 3 + 4?\\"}"', {ASKED}),
        ('ask\n"What is\n3 + 4?" then', {ASKED}),
        ('say("What is "\n    "3 + 4?")', {ASKED}),
        ('f"Has Dan {24 + n} nuts?"', {f"Has Dan {value} nuts?" for value in (24, 31, 43)}),
        ('it prints "5 nuts", "bundled:beam-16" or "Which one?"', set()),
    ],
)
def test_a_text_is_read(text: str, shown: set[str]) -> None:
    assert find_problems(text) == shown


@pytest.mark.parametrize("page", ["```ruby\n1 + 2\n```", "```sh\nflashedge chat"])
def test_a_page_that_is_not_understood_is_refused(page: str) -> None:
    with pytest.raises(AssertionError, match="code block"):
        check_blocks(page)

"""Every problem that is shown to users is found, and its right answer is known.

`tests/engine/test_examples.py` lets the bundled pair solve them.
"""

from __future__ import annotations

import pytest

from tests.support.examples import (
    ANSWERS,
    find_answer,
    is_problem,
    list_examples,
    read_help,
    read_page,
    read_python,
)

SHOWN = sorted(set(list_examples()))
DAY = "nuts. Day 1: wins 20."


@pytest.mark.parametrize(("place", "problem"), SHOWN)
def test_every_example_has_an_answer(place: str, problem: str) -> None:
    assert find_answer(place, problem).isdigit()


def test_every_answer_belongs_to_an_example() -> None:
    assert not set(ANSWERS) - {problem for _, problem in SHOWN}


def test_an_example_without_an_answer_is_named_with_its_place() -> None:
    with pytest.raises(AssertionError, match=r"page\.md shows '1 \+ 1'.*support/examples\.py"):
        find_answer("page.md", "1 + 1")


@pytest.mark.parametrize(
    "place",
    [
        *("flashedge --help", "flashedge solve --help"),
        *("README.md", "docs/strategies.md", "docs/guide/solve.md"),
        *("docs/guide/determinism.md", "docs/guide/serve.md", "docs/guide/many-programs.md"),
        *("docs/guide/frameworks/langchain.md", "docs/guide/frameworks/smolagents.md"),
        *("flashedge/files/problems.py", "scripts/quickstart.sh"),
    ],
)
def test_examples_are_found_where_they_stand(place: str) -> None:
    assert place in {found for found, _ in SHOWN}


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ('```sh\nflashedge solve "1 + 2" \\\n  -n 16   # it\'s 3\n```', ["1 + 2"]),
        ('```bash\ncurl -d \'{\n "messages": [{"content": "1 + 2"}]}\'\n```', ["1 + 2"]),
        ('```python\nask({"content": "1 + 2"})\n```', ["1 + 2"]),
        ('```json\n{"problem": "1 + 2"}\n{"problem": "3 + 4"}\n```', ["1 + 2", "3 + 4"]),
        ("- a list\n  ```sh\n  flashedge chat 1+2 x-7\n  ```", ["1+2"]),
        (
            'Type `flashedge solve "1 + 2"` and ask\n"What is\n3 + 4?" then.',
            ["1 + 2", "What is 3 + 4?"],
        ),
        ('```\nit prints "1 + 2"\n```\nThe answer is "5 nuts".', []),
    ],
)
def test_a_page_is_read(page: str, shown: list[str]) -> None:
    assert [text for text in read_page(page) if is_problem(text)] == shown


@pytest.mark.parametrize("page", ["```ruby\n1 + 2\n```", "```sh\nflashedge chat"])
def test_a_page_that_is_not_understood_is_refused(page: str) -> None:
    with pytest.raises(AssertionError, match="code block"):
        list(read_page(page))


def test_a_formatted_string_is_filled_and_docstrings_are_no_problems() -> None:
    code = 'def ask(n):\n    """From 1 to n."""\n    return f"Dan has {24 + n} ' + DAY + '"\n'
    assert list(read_python(code)) == [f"Dan has {value} {DAY}" for value in (24, 31, 43)]


def test_a_help_text_is_read() -> None:
    text = '  flashedge solve \'It is 1 + 2\' -n 4\n\nA line: {"prompt": "3 + 4", "cut": \\[true]}'
    found = list(read_help(text))
    assert "It is 1 + 2" in found
    assert "3 + 4" in found

"""Every problem that is shown to users is found, and its right answer is known.

`tests/engine/test_daemon.py` lets the bundled pair solve them.
"""

import pytest

from tests.support.examples import ANSWERS, check_blocks, find_answer, list_examples

SHOWN = sorted(set(list_examples()))


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


@pytest.mark.parametrize("page", ["```ruby\n1 + 2\n```", "```sh\nflashedge chat"])
def test_a_page_that_is_not_understood_is_refused(page: str) -> None:
    with pytest.raises(AssertionError, match="code block"):
        check_blocks(page)

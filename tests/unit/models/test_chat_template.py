"""Which variables of a chat template a request or a model's entry may set."""

from __future__ import annotations

import inspect

import pytest
from transformers import PreTrainedTokenizerFast

from flashedge.models.specs import RESERVED, find_fault


@pytest.mark.parametrize("good", [{}, {"enable_thinking": False}, {"effort": "low", "budget": 9}])
def test_variables(good: object) -> None:
    assert find_fault(good) is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "must be a table"),
        ({"tokenize": True}, "can't set 'tokenize'"),
        ({"two words": 1}, "can't set 'two words'"),
        ({"enable_thinking": None}, "sets enable_thinking to None"),
        ({"documents_": ["x"]}, "sets documents_"),
    ],
)
def test_what_is_not_a_variable(bad: object, message: str) -> None:
    assert message in str(find_fault(bad))


def test_no_argument_of_the_template_function_can_be_set() -> None:
    arguments = inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters
    assert set(arguments) - {"kwargs"} <= RESERVED

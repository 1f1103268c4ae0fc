"""Variables that a request or a model's entry gives to the generator's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RESERVED = frozenset(
    {
        *("conversation", "messages", "tools", "documents", "chat_template"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        *("tokenizer_kwargs", "self"),
    }
)
"""Names that mean something else to transformers' `apply_chat_template`."""


def find_fault(variables: object) -> str | None:
    """What is wrong with the variables of a chat template; None if nothing is.

    They must be a mapping of names to texts, numbers and booleans.
    """
    if not isinstance(variables, Mapping):
        return f"is {variables!r}; it must be a table of names and values"
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            return f"can't set {name!r}"
        if not isinstance(value, str | int | float):
            return f"sets {name} to {value!r}; it must be a text, a number, true or false"
    return None


def find_unknown(variables: Mapping[str, Any], template: str) -> str | None:
    """The first variable that the template does not speak of."""
    return next((name for name in variables if name not in template), None)
